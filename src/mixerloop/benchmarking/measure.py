"""Time and memory of a function."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import quantiles
from typing import TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

from mixerloop import machine

K = TypeVar("K")


@dataclass(frozen=True)
class Timing:
    """Seconds over repeated calls."""

    median: float
    lower: float
    """The quarter of calls that were fastest took at most this."""
    upper: float
    """And the quarter that were slowest at least this."""


def interleaved(
    functions: Mapping[K, Callable[[], object]], *, warmup: int = 3, repeats: int = 20
) -> dict[K, Timing]:
    """Time functions in turn, so that what disturbs the machine disturbs them alike."""
    for _ in range(warmup):
        for function in functions.values():
            function()
    seconds: dict[K, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - began)
    summary = {name: quantiles(values, n=4) for name, values in seconds.items()}
    return {name: Timing(middle, low, high) for name, (low, middle, high) in summary.items()}


def peak_bytes(function: Callable[[], object]) -> int:
    """The most memory torch held at once on the CPU during a call, beyond what it held before."""
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
    """One line on where the figures below were measured."""
    facts = machine.facts()
    limit = f", oneDNN limited to {facts['isa_limit']}" if facts["isa_limit"] else ""
    return (
        f"{facts['processor']}, {facts['cores']} cores, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}{limit}"
    )
