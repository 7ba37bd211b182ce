"""Transport: all policies from one shared walk, against a whole forward pass for each policy."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mixerloop import machine
from mixerloop.benchmarking.conditions import check_tokens_fit, config_of, provenance_of
from mixerloop.benchmarking.measure import Quartiles, interleaved
from mixerloop.benchmarking.settings import TransportSettings
from mixerloop.config import ModelConfig
from mixerloop.data.windows import DrawnWindows
from mixerloop.model.accounting import account_model
from mixerloop.model.initialization import fresh_model, meta_model
from mixerloop.notation import resolve
from mixerloop.parsing import checked
from mixerloop.transport.policies import (
    first_difference,
    intact,
    last_mixing,
    mixer_passes,
    restored,
)
from mixerloop.transport.trajectories import Trajectories, measure, mixing_layers
from mixerloop.transport.windows import uniform_windows

AGREE = 1e-6
SUMS = ("gram", "hellinger_squared", "target_gain", "top1_flips")


@dataclass(frozen=True, kw_only=True)
class TransportResult:
    """The times of three ways to measure the same figures."""

    size: str
    schedule: str
    windows: int
    positions: int
    context: int
    milliseconds: dict[str, Quartiles]
    plain_over_shared: float
    """The speedup over a forward pass per policy and window."""
    plain_over_shared_quartiles: tuple[float, float]
    batched_plain_over_shared: float
    """The speedup over a forward pass per policy on a batch of windows."""
    batched_plain_over_shared_quartiles: tuple[float, float]
    work_limit: float
    """The same ratio from the work of the projections and the head alone."""
    largest_difference: float
    """The largest difference between the engines in any number."""


@dataclass(frozen=True, kw_only=True)
class TransportBench:
    """The times, and the conditions they were taken under."""

    figures: TransportResult
    provenance: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The JSON that `mixerloop bench transport --json` prints."""
        return {**asdict(self.figures), "provenance": self.provenance}


@checked
def bench_transport(settings: TransportSettings | None = None) -> TransportBench:
    """Time transport with shared walks against a forward pass for each policy."""
    settings = TransportSettings() if settings is None else settings
    settings.check()
    machine.keep_freed_memory()
    config = config_of(settings.size)
    resolve(settings.schedule, config.num_layers)
    what = f"windows = {settings.windows:,}, context = {settings.context:,}"
    tokens = settings.windows * settings.context
    check_tokens_fit(config, tokens, residuals=1, what=what)
    neighbours = machine.Neighbours()
    figures = measure_transport(
        settings.size,
        config,
        settings.schedule,
        windows=settings.windows,
        positions=settings.positions,
        context=settings.context,
        repeats=settings.repeats,
    )
    provenance = provenance_of(neighbours, compute_dtype="float32", repeats=settings.repeats)
    return TransportBench(figures=figures, provenance=provenance)


def measure_transport(
    size: str,
    config: ModelConfig,
    schedule: str,
    *,
    windows: int,
    positions: int,
    context: int,
    repeats: int,
) -> TransportResult:
    """Check that the engines agree in every number, then time them in turn."""
    model = fresh_model(replace(config, schedule=schedule), seed=0).eval()
    read = uniform_windows(
        model.config.vocab_size, num=windows, context=context, num_positions=positions, seed=0
    )
    ways = {
        "shared": lambda: measure(model, read),
        "plain, a window at a time": lambda: measure(
            model, read, engine="plain", windows_at_once=1
        ),
        "plain, windows together": lambda: measure(model, read, engine="plain"),
    }
    shared, *plain = (way() for way in ways.values())
    difference = max(_largest_difference(shared, result) for result in plain)
    if not difference <= AGREE:
        raise FloatingPointError(f"the engines differ: off by {difference:.1e}")
    times = interleaved(ways, warmup=0, repeats=repeats)
    ours, one_by_one, together = times.values()
    alone, batched = one_by_one.over(ours), together.over(ours)
    return TransportResult(
        size=size,
        schedule=schedule,
        windows=windows,
        positions=positions,
        context=context,
        milliseconds={name: timing.milliseconds for name, timing in times.items()},
        plain_over_shared=alone.median,
        plain_over_shared_quartiles=(alone.lower, alone.upper),
        batched_plain_over_shared=batched.median,
        batched_plain_over_shared_quartiles=(batched.lower, batched.upper),
        work_limit=_work_limit(model.config, read),
        largest_difference=difference,
    )


def _largest_difference(first: Trajectories, second: Trajectories) -> float:
    pairs = [(getattr(first, name), getattr(second, name)) for name in SUMS]
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def _work_limit(config: ModelConfig, windows: DrawnWindows) -> float:
    """Multiply-adds with weights for one window, plain over shared.

    Both engines also run one forward pass as a check.
    """
    account, schedule = account_model(config), config.occurrences()
    mixes_tokens = meta_model(config).mixes_tokens
    macs, head = account.projection_macs(), account.head_macs_per_token
    context, chosen = windows.tokens.shape[1], len(windows.positions)
    forward = context * sum(macs[occurrence.sublayer] for occurrence in schedule)
    check = forward + chosen * head
    plain, shared = check, check + forward + chosen * head
    for layer in mixing_layers(schedule):
        num_passes = len(mixer_passes(schedule, layer))
        plain += (num_passes + 1) * (forward + context * head)
        for number in range(num_passes):
            policy = restored(schedule, layer=layer, num_intact=number)
            for at in range(first_difference(policy, intact(schedule)), len(policy)):
                tokens = context if at <= last_mixing(policy, mixes_tokens) else chosen
                shared += tokens * macs[policy[at].occurrence.sublayer]
            shared += chosen * head
    return plain / shared
