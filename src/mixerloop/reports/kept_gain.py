"""How much of the full loop's gain over no loop another loop keeps: the paper's question."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mixerloop.evaluation.nll_result import NllResult
from mixerloop.intervals import quantile
from mixerloop.reports.elements import Element, Table
from mixerloop.results import Estimate
from mixerloop.studies.table import Table as StudyTable

NO_LOOP, FULL_LOOP = "no_loop", "full_loop"


@dataclass(frozen=True)
class _Mean:
    value: float
    variance: float
    """Of the mean, not of a seed."""

    @staticmethod
    def of(values: Sequence[float]) -> "_Mean":
        size, mean = len(values), math.fsum(values) / len(values)
        return _Mean(mean, math.fsum((x - mean) ** 2 for x in values) / (size - 1) / size)


def kept_share(
    no_loop: Sequence[float], loop: Sequence[float], full_loop: Sequence[float]
) -> Estimate | None:
    """(no loop - loop) / (no loop - full loop) of mean NLLs, with Fieller's 95 % interval.

    The interval holds each share s for which (1 - s) no loop - loop + s full loop may be zero. The
    degrees of freedom are those of the model with the fewest seeds. None if the full loop may have
    no gain: then any share is possible.
    """
    none, one, full = (_Mean.of(values) for values in (no_loop, loop, full_loop))
    t = quantile(min(map(len, (no_loop, loop, full_loop))) - 1)
    gain, full_gain = none.value - one.value, none.value - full.value
    square = full_gain**2 - t**2 * (none.variance + full.variance)
    if square <= 0 or full_gain <= 0:
        return None
    half = gain * full_gain - t**2 * none.variance
    constant = gain**2 - t**2 * (none.variance + one.variance)
    root = math.sqrt(max(half**2 - square * constant, 0.0))
    return Estimate(
        value=gain / full_gain,
        lower=(half - root) / square,
        upper=(half + root) / square,
        over="seeds",
    )


def kept_gain(part: StudyTable) -> Iterator[Element]:
    """A table of gains over no loop, for parts with both models, another loop and several seeds."""
    nll = {
        name: [result.nll.value for result in arm.results(NllResult)]
        for name, arm in part.arms.items()
    }
    others = [name for name in nll if name not in (NO_LOOP, FULL_LOOP)]
    if not {NO_LOOP, FULL_LOOP} <= nll.keys() or not others:
        return
    if min(map(len, nll.values())) < 2:
        return
    rows = []
    for name in (*others, FULL_LOOP):
        share = kept_share(nll[NO_LOOP], nll[name], nll[FULL_LOOP])
        shown = "" if share is None else f"{share.value:.0%} [{share.lower:.0%}, {share.upper:.0%}]"
        gain = _Mean.of(nll[NO_LOOP]).value - _Mean.of(nll[name]).value
        rows.append([name, f"{gain:+.4f}", "100%" if name == FULL_LOOP and shown else shown])
    if rows[-1][-1]:
        note = "Fieller's interval of 95 %, over seeds; each share by itself."
    else:
        note = (
            "No share is shown: over these seeds the full loop may have no gain, so that any share "
            "is possible."
        )
    columns = ["model", "gain over no loop, nats", "share of the full loop's gain"]
    yield Table("What a loop keeps of the full loop's gain", columns, rows, note)
