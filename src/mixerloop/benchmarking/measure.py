"""Measure the time and memory of function calls, and check their results."""

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import quantiles
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from mixerloop import machine

K = TypeVar("K")
LEAST_ROUNDS = 2  # a quartile needs more than one measurement


class Quartiles(NamedTuple):
    """The median and the quartiles of repeated measurements."""

    median: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Timing:
    """Seconds of each call, in the order of the rounds."""

    seconds: tuple[float, ...]

    @property
    def milliseconds(self) -> Quartiles:
        """The quartiles of one call's time."""
        return _quartiles([1e3 * value for value in self.seconds])

    def over(self, other: "Timing") -> Quartiles:
        """The quartiles of the ratio of the two times, taken round by round.

        Rounds that only one of the two was in do not count; they are the last ones.
        """
        pairs = zip(self.seconds, other.seconds, strict=False)
        return _quartiles([a / b for a, b in pairs])

    def of_one(self, calls: int) -> "Timing":
        """The time of one call, where each measurement was of several in a row."""
        return Timing(tuple(value / calls for value in self.seconds))


def interleaved(
    functions: Mapping[K, Callable[[], object]],
    *,
    warmup: int | Mapping[K, int] = 3,
    repeats: int = 20,
    most_seconds: float = math.inf,
    rest: Callable[[K], object] = lambda name: None,
) -> dict[K, Timing]:
    """Time functions in turn, so that other load on the machine slows all of them alike.

    A function that has taken `most_seconds` is in no more rounds, but in at least `LEAST_ROUNDS`.
    `rest` is called after each call, and not timed.
    """
    most_warmup = max(warmup.values()) if isinstance(warmup, Mapping) else warmup
    for round_ in range(most_warmup):
        for name, function in functions.items():
            if round_ < (warmup[name] if isinstance(warmup, Mapping) else warmup):
                function()
                rest(name)
    seconds: dict[K, list[float]] = {name: [] for name in functions}
    for round_ in range(repeats):
        for name, function in functions.items():
            if round_ >= LEAST_ROUNDS and sum(seconds[name]) > most_seconds:
                continue
            began = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - began)
            rest(name)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def check_close(what: str, got: Tensor, wanted: Tensor, *, tolerance: float) -> None:
    """Raise if a result is wrong, so that only correct code is timed.

    `tolerance` is relative to the largest wanted value, or to 1 if that is larger.
    """
    if got.shape != wanted.shape:
        raise FloatingPointError(f"{what}: {tuple(got.shape)} instead of {tuple(wanted.shape)}")
    error = (got - wanted).abs().max() / wanted.abs().max().clamp_min(1)
    if not error <= tolerance:
        raise FloatingPointError(f"{what} computes something else: off by {error:.1e}")


def _quartiles(values: list[float]) -> Quartiles:
    if len(values) == 1:
        return Quartiles(*(3 * values))
    lower, middle, upper = quantiles(values, n=4, method="inclusive")
    return Quartiles(middle, lower, upper)


def peak_bytes(function: Callable[[], object]) -> int:
    """The peak of torch's memory on the CPU during a call, minus its memory before the call."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = function()
    del result
    results = getattr(profiler.profiler, "kineto_results", None)
    assert results is not None, "the profiler recorded nothing"
    events = [event for event in results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def header() -> str:
    """A line about the machine, printed above the figures."""
    facts = machine.facts()
    limit = f", oneDNN limited to {facts['isa_limit']}" if facts["isa_limit"] else ""
    return (
        f"{facts['processor']}, {facts['cores']} cores, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}{limit}"
    )
