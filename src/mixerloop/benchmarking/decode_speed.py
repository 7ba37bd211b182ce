"""Decoding: the time of one token after prefixes of different lengths."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from mixerloop import machine
from mixerloop.benchmarking.conditions import config_of, provenance_of
from mixerloop.benchmarking.measure import Quartiles, check_close, interleaved
from mixerloop.benchmarking.settings import DecodeSettings
from mixerloop.config import ModelConfig
from mixerloop.model.decoding import advance, prefill, start
from mixerloop.model.initialization import fresh_model
from mixerloop.notation import resolve
from mixerloop.parsing import checked

PREFIXES = (64, 512, 1024, 2048, 8192)
RECOMPUTED_PREFIX = 1024
TOKENS_IN_A_ROW = 8
LEAST_RECOMPUTED, REPEATS_PER_RECOMPUTED = 3, 6  # a forward pass costs hundreds of tokens
AGREE = 1e-4  # two implementations in float32, over all layers and a thousand tokens


@dataclass(frozen=True, kw_only=True)
class DecodeCase:
    """The time of one more token after a prefix."""

    prefix: int
    milliseconds: Quartiles
    tokens_per_second: float
    ratio_to_first: float
    """The time over the time after the shortest prefix, compared round by round."""
    ratio_to_first_quartiles: tuple[float, float]
    state_bytes: int


@dataclass(frozen=True, kw_only=True)
class DecodeResult:
    """The times after every prefix, and the time of a token from a forward pass over its prefix."""

    size: str
    schedule: str
    cases: list[DecodeCase]
    recomputed_prefix: int
    recompute_milliseconds: Quartiles
    recompute_over_decode: float
    recompute_over_decode_quartiles: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class DecodeBench:
    """The times, and the conditions they were taken under."""

    figures: DecodeResult
    provenance: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The JSON that `mixerloop bench decode --json` prints."""
        return {**asdict(self.figures), "provenance": self.provenance}


@checked
def bench_decode(settings: DecodeSettings | None = None) -> DecodeBench:
    """Time the decoding of tokens after prefixes of different lengths."""
    settings = DecodeSettings() if settings is None else settings
    settings.check()
    machine.keep_freed_memory()
    config = config_of(settings.size)
    resolve(settings.schedule, config.num_layers)
    neighbours = machine.Neighbours()
    figures = measure_decode(
        settings.size,
        config,
        settings.schedule,
        repeats=settings.repeats,
        recompute_repeats=max(LEAST_RECOMPUTED, settings.repeats // REPEATS_PER_RECOMPUTED),
    )
    provenance = provenance_of(neighbours, compute_dtype="float32", repeats=settings.repeats)
    return DecodeBench(figures=figures, provenance=provenance)


@torch.inference_mode()
def measure_decode(
    size: str, config: ModelConfig, schedule: str, *, repeats: int, recompute_repeats: int
) -> DecodeResult:
    """Check a decoded token against a forward pass over the whole text, then time tokens in turn.

    The states come from real prefixes. The forward pass over the prefix is timed in turn with a few
    tokens that are decoded one after another, as in generation.
    """
    model = fresh_model(replace(config, schedule=schedule), seed=0).eval()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (1, PREFIXES[-1] + 1), generator=generator)
    states = {n: prefill(model, tokens[:, :n], start(model))[1] for n in PREFIXES}

    n = RECOMPUTED_PREFIX
    last = torch.tensor([-1])
    whole = tokens[:, : n + 1]
    decoded, _ = advance(model, whole[:, -1:], states[n])
    plain = fresh_model(model.config, seed=0, form="torch").eval()
    check_close("decoding", decoded, plain(whole, positions=last), tolerance=AGREE)

    token = tokens[:, -1:]
    times = interleaved(
        {n: lambda n=n: advance(model, token, states[n]) for n in PREFIXES},
        warmup=5,
        repeats=repeats,
    )

    def decode_some() -> None:
        state = states[RECOMPUTED_PREFIX]
        for _ in range(TOKENS_IN_A_ROW):
            _, state = advance(model, token, state)

    both = interleaved(
        {"recompute": lambda: model(whole, positions=last), "decode": decode_some},
        warmup=1,
        repeats=recompute_repeats,
    )
    saved = Quartiles(*(TOKENS_IN_A_ROW * x for x in both["recompute"].over(both["decode"])))
    first = times[PREFIXES[0]]
    cases = []
    for n in PREFIXES:
        ratio = times[n].over(first)
        cases.append(
            DecodeCase(
                prefix=n,
                milliseconds=times[n].milliseconds,
                tokens_per_second=1e3 / times[n].milliseconds.median,
                ratio_to_first=ratio.median,
                ratio_to_first_quartiles=(ratio.lower, ratio.upper),
                state_bytes=states[n].nbytes(),
            )
        )
    return DecodeResult(
        size=size,
        schedule=schedule,
        cases=cases,
        recomputed_prefix=RECOMPUTED_PREFIX,
        recompute_milliseconds=both["recompute"].milliseconds,
        recompute_over_decode=saved.median,
        recompute_over_decode_quartiles=(saved.lower, saved.upper),
    )
