"""The gated delta rule: our forms beside the CPU implementations of other packages.

Every implementation is called as its user would call it, on arrays of its own that are made before.
Nothing is timed unless its output, its final state and its gradients are right.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerloop import machine
from mixerloop.benchmarking.conditions import provenance_of
from mixerloop.benchmarking.implementation import Decay, Implementation, Inputs, Prepared
from mixerloop.benchmarking.measure import Quartiles, Timing, check_close, interleaved
from mixerloop.benchmarking.own_forms import NATIVE, NATIVE_BFLOAT16, NATIVE_BOUND, TOKENS, TORCH
from mixerloop.benchmarking.peers.registry import PEERS
from mixerloop.benchmarking.settings import OperatorSettings
from mixerloop.parsing import checked

Shape = tuple[int, int, int, int]
Direction = Literal["forward", "forward_backward"]

OURS = (NATIVE, TORCH)
AGREE = {
    torch.float32: 1e-4,  # two orders of summation
    torch.bfloat16: 2**-6,  # four times the distance of neighbouring numbers at 1
}
MOST_SECONDS = 3.0
"""The time of one implementation in one direction, after which it takes part in no more rounds."""
PAUSE_SECONDS = 0.01
"""After each timed call: threads of other packages spin for some time in wait of more work."""
SCALAR = "native_scalar"
"""Our form with one decay for a head, timed beside decays per channel."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What one entry of the benchmark runs."""

    shape: Shape
    """Batch, tokens, heads and head size."""
    decay: Decay = "head"
    calls: int = 1
    """Calls in a row that make one timed sample: many, where one is too short for the clock."""
    has_backward: bool = True


CASES: dict[str, Case] = {
    "15m": Case(shape=(4, 1024, 4, 72)),
    "110m": Case(shape=(2, 1024, 12, 64)),
    "square": Case(shape=(4, 1024, 4, 64)),
    "long": Case(shape=(1, 8192, 4, 64)),
    "channels": Case(shape=(4, 1024, 4, 64), decay="channel"),
    "token": Case(shape=(1, 1, 4, 64), calls=200, has_backward=False),
}


@dataclass(frozen=True, kw_only=True)
class OperatorCase:
    """One shape: milliseconds of a call of each implementation, and our speedup over each peer.

    A ratio is the peer's time over ours: of `best`, or of our form in bfloat16 or our bound call
    where the peer computes in bfloat16 or is bound to its memory.
    """

    name: str
    shape: Shape
    decay: Decay
    calls: int
    forward: dict[str, Quartiles]
    forward_backward: dict[str, Quartiles]
    repeats: dict[str, dict[str, int]]
    """Timed samples of each implementation; slow ones are in the first rounds only."""
    dtypes: dict[str, str]
    best: str
    """The fastest of our forms."""
    ratios_forward: dict[str, Quartiles]
    ratios_forward_backward: dict[str, Quartiles]
    best_peer: dict[str, str | None]
    """In each direction the peer over which our speedup is smallest; None if none was timed."""
    compared: dict[str, str]
    """Our form whose time that peer's time was divided by."""
    ratio_forward_to_best_peer: float | None
    ratio_forward_to_best_peer_quartiles: tuple[float, float] | None
    ratio_forward_backward_to_best_peer: float | None
    ratio_forward_backward_to_best_peer_quartiles: tuple[float, float] | None
    channel_over_scalar: dict[str, Quartiles] | None
    """Our time with a decay per channel over our time with one decay for a head."""
    missing: list[str] = field(default_factory=list)
    """Implementations that are not installed."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Why an installed implementation was not timed at this shape."""


@dataclass(frozen=True, kw_only=True)
class OperatorBench:
    """The times of all shapes, and the conditions they were taken under."""

    shapes: tuple[OperatorCase, ...]
    versions: dict[str, str]
    """The version of each peer's package."""
    provenance: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The JSON that `mixerloop bench operator --json` prints."""
        return asdict(self)


@checked
def bench_operator(
    settings: OperatorSettings | None = None,
    progress: Callable[[OperatorCase], object] = lambda case: None,
) -> OperatorBench:
    """Time the forms of the gated delta rule beside those of other packages."""
    settings = OperatorSettings() if settings is None else settings
    settings.check()
    neighbours = machine.Neighbours()
    shapes: list[OperatorCase] = []
    for name in settings.shapes:
        shapes.append(
            measure_operator(
                name, CASES[name], repeats=settings.repeats, strong_decay=settings.strong_decay
            )
        )
        progress(shapes[-1])
    return OperatorBench(
        shapes=tuple(shapes),
        versions={peer.name: peer.version() for peer in PEERS if peer.is_installed()},
        provenance=provenance_of(neighbours, compute_dtype="float32", repeats=settings.repeats),
    )


class _Entry(NamedTuple):
    """An implementation with the inputs it runs on."""

    implementation: Implementation
    inputs: Inputs


def measure_operator(
    name: str, case: Case, *, repeats: int, strong_decay: bool = False
) -> OperatorCase:
    """Check that all implementations compute the right result, then time them in turn."""
    inputs = make_inputs(case, strong_decay=strong_decay)
    present, missing, left_out = implementations_here(inputs)
    entries = {one.name: _Entry(one, inputs) for one in present}
    if case.decay == "channel":
        first = {"log_decay": inputs["log_decay"][..., 0].contiguous()}
        entries[SCALAR] = _Entry(next(one for one in present if one in OURS), inputs | first)
    prepared, gate_seconds = _check(name, entries, has_backward=case.has_backward)
    times = _time(prepared, gate_seconds, calls=case.calls, repeats=repeats)
    forward, both = (
        {key: timing for (key, ran), timing in times.items() if ran == direction}
        for direction in ("forward", "forward_backward")
    )
    decisive = both or forward
    best = min((one.name for one in OURS if one in present), key=lambda key: _median(decisive[key]))
    peers = {one.name: one for one in present if one in PEERS}
    ratios, ratios_both = (_ratios(peers, timings, best) for timings in (forward, both))
    hardest, hardest_both = (_smallest(found) for found in (ratios, ratios_both))
    return OperatorCase(
        name=name,
        shape=case.shape,
        decay=case.decay,
        calls=case.calls,
        forward={key: timing.milliseconds for key, timing in forward.items()},
        forward_backward={key: timing.milliseconds for key, timing in both.items()},
        repeats={
            key: {
                direction: len(timings[key].seconds)
                for direction, timings in (("forward", forward), ("forward_backward", both))
                if key in timings
            }
            for key in forward
        },
        dtypes={
            key: str(entry.implementation.dtype).removeprefix("torch.")
            for key, entry in entries.items()
        },
        best=best,
        ratios_forward=ratios,
        ratios_forward_backward=ratios_both,
        best_peer={"forward": hardest, "forward_backward": hardest_both},
        compared={
            direction: _ours(peers[peer], timings, best)
            for direction, peer, timings in (
                ("forward", hardest, forward),
                ("forward_backward", hardest_both, both),
            )
            if peer is not None
        },
        ratio_forward_to_best_peer=ratios[hardest].median if hardest else None,
        ratio_forward_to_best_peer_quartiles=ratios[hardest][1:] if hardest else None,
        ratio_forward_backward_to_best_peer=(
            ratios_both[hardest_both].median if hardest_both else None
        ),
        ratio_forward_backward_to_best_peer_quartiles=(
            ratios_both[hardest_both][1:] if hardest_both else None
        ),
        channel_over_scalar=(
            {
                "forward": forward[best].over(forward[SCALAR]),
                "forward_backward": both[best].over(both[SCALAR]),
            }
            if SCALAR in entries
            else None
        ),
        missing=missing,
        left_out=left_out,
    )


def implementations_here(
    inputs: Inputs,
) -> tuple[list[Implementation], list[str], dict[str, str]]:
    """The implementations to time, those that are missing, and why others are left out."""
    known = (*OURS, *PEERS)
    missing = [one.name for one in known if not one.is_installed()]
    left_out: dict[str, str] = {}
    present: list[Implementation] = []
    for one in known:
        if one.name in missing:
            continue
        if (reason := one.why_not(inputs)) is not None:
            left_out[one.name] = reason
        else:
            present.append(one)
    if NATIVE.is_installed() and any(one.dtype == torch.bfloat16 for one in present):
        present.append(NATIVE_BFLOAT16)
    if NATIVE.is_installed() and any(one.is_bound for one in present):
        present.append(NATIVE_BOUND)
    return present, missing, left_out


def make_inputs(case: Case, *, strong_decay: bool = False) -> Inputs:
    """Random inputs; strong decays, down to -8, make products that underflow in float32."""
    batch, seq, heads, d_head = case.shape
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    gates = (batch, seq, heads)
    decays = gates if case.decay == "head" else (*gates, d_head)
    strong = -(torch.rand(decays, generator=generator) ** 4) * 8
    return {
        "query": F.normalize(normal(*gates, d_head), dim=-1) * d_head**-0.5,
        "key": F.normalize(normal(*gates, d_head), dim=-1),
        "value": normal(*gates, d_head),
        "log_decay": strong if strong_decay else -normal(*decays).square() / 8,
        "write_strength": normal(*gates).sigmoid(),
        "initial_state": normal(batch, heads, d_head, d_head),
    }


def _check(
    name: str, entries: dict[str, _Entry], *, has_backward: bool
) -> tuple[dict[str, Prepared], dict[tuple[str, Direction], float]]:
    """Compare all with our torch form in float64; returns the calls, and the seconds of the first.

    The float64 form gets the same inputs, rounded where the implementation rounds them.
    """
    prepared: dict[str, Prepared] = {}
    seconds: dict[tuple[str, Direction], float] = {}
    references: dict[tuple[torch.dtype, int], dict[str, Tensor]] = {}
    for key, (implementation, inputs) in entries.items():
        cotangents = _cotangents(inputs)
        dtype = implementation.dtype
        reference = (dtype, inputs["log_decay"].ndim)
        if reference not in references:
            exact = {
                name: (tensor.to(dtype) if name in TOKENS else tensor).double()
                for name, tensor in inputs.items()
            }
            d_output, d_state = cotangents
            right = TORCH.prepare(exact, (d_output.double(), d_state.double()))
            references[reference] = _results(right, has_backward=has_backward)[0]
        prepared[key] = implementation.prepare(inputs, cotangents)
        got, taken = _results(prepared[key], has_backward=has_backward)
        seconds |= {(key, direction): one for direction, one in taken.items()}
        for what, tensor in got.items():
            wanted = references[reference][what]
            check_close(f"{name}: {key}", tensor.double(), wanted, tolerance=AGREE[dtype])
    return prepared, seconds


def _results(
    prepared: Prepared, *, has_backward: bool
) -> tuple[dict[str, Tensor], dict[Direction, float]]:
    """All results of an implementation by name, and how long it took in each direction."""
    began = time.perf_counter()
    with torch.no_grad():
        output, state = prepared.outputs()
    taken: dict[Direction, float] = {"forward": time.perf_counter() - began}
    results = {"output": output, "final_state": state}
    if has_backward and prepared.gradients is not None:
        began = time.perf_counter()
        results |= {f"d_{name}": tensor for name, tensor in prepared.gradients().items()}
        taken["forward_backward"] = time.perf_counter() - began
    if prepared.rest is not None:
        prepared.rest()
    return results, taken


def _cotangents(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Gradients of the output and of the final state, the same in every call."""
    generator = torch.Generator().manual_seed(1)
    value, state = inputs["value"], inputs["initial_state"]
    return (
        torch.randn(value.shape, generator=generator),
        torch.randn(state.shape, generator=generator),
    )


def _time(
    prepared: dict[str, Prepared],
    gate_seconds: dict[tuple[str, Direction], float],
    *,
    calls: int,
    repeats: int,
) -> dict[tuple[str, Direction], Timing]:
    """Time both directions in turn; what was slow in the gate needs no other warm-up."""
    functions: dict[tuple[str, Direction], Callable[[], object]] = {}
    for key, one in prepared.items():
        functions[key, "forward"] = partial(_without_gradients, one.forward, calls)
        if (key, "forward_backward") in gate_seconds and one.forward_backward is not None:
            functions[key, "forward_backward"] = one.forward_backward

    def rest(of: tuple[str, Direction]) -> None:
        if (end := prepared[of[0]].rest) is not None:
            end()
        time.sleep(PAUSE_SECONDS)

    times = interleaved(
        functions,
        warmup={of: 0 if gate_seconds[of] > MOST_SECONDS else 2 for of in functions},
        repeats=repeats,
        most_seconds=MOST_SECONDS,
        rest=rest,
    )
    return {
        (key, direction): timing.of_one(calls if direction == "forward" else 1)
        for (key, direction), timing in times.items()
    }


def _without_gradients(call: Callable[[], object], calls: int) -> None:
    with torch.no_grad():
        for _ in range(calls):
            call()


def _ratios(
    peers: dict[str, Implementation], times: dict[str, Timing], best: str
) -> dict[str, Quartiles]:
    """Each peer's time over ours."""
    return {
        name: times[name].over(times[_ours(peer, times, best)])
        for name, peer in peers.items()
        if name in times
    }


def _ours(peer: Implementation, times: dict[str, Timing], best: str) -> str:
    """Our form to compare with a peer: in bfloat16 where the peer is, bound where the peer is."""
    alike = NATIVE_BFLOAT16 if peer.dtype == torch.bfloat16 else NATIVE_BOUND
    is_special = peer.dtype == torch.bfloat16 or peer.is_bound
    return alike.name if is_special and alike.name in times else best


def _smallest(ratios: dict[str, Quartiles]) -> str | None:
    return min(ratios, key=lambda name: ratios[name].median, default=None)


def _median(timing: Timing) -> float:
    return timing.milliseconds.median
