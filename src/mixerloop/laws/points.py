"""The rows of a study as points of a scaling law: parameters, passes, tokens and held-out NLL."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mixerloop.evaluation.nll_result import NllResult
from mixerloop.notation import parse
from mixerloop.studies.table import Row, Table
from mixerloop.study_folder import PLAN

NO_LOOP = "no_loop"
"""The name of all models without a loop, whatever their arms are called."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """Rows of a study that differ in their seed only, as a point of the law."""

    loop: str
    """The name of the arm without a number of passes, so that several numbers are one loop."""
    size: str
    passes: int
    once: int
    """Parameters that run once per token; the embedding, which is also the head, is one of them."""
    recurrent: int
    """Parameters of the sublayers that run in several passes, norms included."""
    tokens: int
    """Training tokens."""
    nlls: tuple[float, ...]
    """The held-out NLL of each seed, in nats per token."""

    @property
    def nll(self) -> float:
        """The mean over the seeds."""
        return float(np.mean(self.nlls))

    @property
    def parameters(self) -> int:
        """All parameters, each counted once."""
        return self.once + self.recurrent


def loops_of(groups: Iterable[Point]) -> list[str]:
    """The names of the loops, without that of models without a loop."""
    return list(dict.fromkeys(group.loop for group in groups if group.loop != NO_LOOP))


def of_one_loop(groups: Iterable[Point], loop: str) -> list[Point]:
    """The groups that a loop's fit uses: those of the loop and those without a loop."""
    return [group for group in groups if group.loop in (NO_LOOP, loop)]


def read_points(table: Table, parts: Sequence[str] = ()) -> list[Point]:
    """The points of all filled rows, or of those of the named parts; all must have the same data.

    Runs that tune are left out. Raises ValueError for results that cannot be pooled.
    """
    nlls: dict[tuple[str, str, int, int, int, int], list[float]] = {}
    first: tuple[Row, NllResult] | None = None
    for row in _pooled(table, parts):
        result = row.result(NllResult)
        if result is None or not row.trained_tokens or row.seed is None:
            lacks = "held-out NLL" if result is None else "record of its training"
            raise ValueError(f"{row.path}: has no {lacks}; a law needs both")
        first = first or (row, result)
        _check_measured_alike((row, result), first)
        passes, recurrent, unused = counts(row)
        loop = NO_LOOP if passes == 1 else loop_name(row.arm)
        once = row.parameters - recurrent - unused
        model = loop, _size(row), passes, once, recurrent
        nlls.setdefault((*model, row.trained_tokens), []).append(result.nll.value)
    if not nlls:
        raise ValueError("the study has no finished runs yet")
    return [
        Point(
            loop=loop,
            size=size,
            passes=passes,
            once=once,
            recurrent=recurrent,
            tokens=tokens,
            nlls=tuple(of_seeds),
        )
        for (loop, size, passes, once, recurrent, tokens), of_seeds in nlls.items()
    ]


def loop_name(arm: str) -> str:
    """The name of an arm without its number of passes: `mixer_loop` for `mixer_loop(2)`."""
    named = re.fullmatch(r"(\w+)\s*\(\s*\d+\s*\)", arm)
    return arm if named is None else named[1]


def counts(row: Row) -> tuple[int, int, int]:
    """The number of passes, the parameters that run in several passes, and those that never run."""
    if not row.layer_parameters:
        raise ValueError(
            f"{PLAN} has no parameters of the sublayers of '{row.arm}': it was written by an "
            "older version; write it again: mixerloop study STUDY --out FOLDER"
        )
    runs = Counter((one.layer, one.sublayer) for one in parse(row.schedule))
    sizes = {
        (layer, sublayer): size
        for layer, by_sublayer in enumerate(row.layer_parameters)
        for sublayer, size in by_sublayer.items()
    }
    if not runs.keys() <= sizes.keys() or sum(sizes.values()) > row.parameters:
        raise ValueError(f"{PLAN}: the parameters of '{row.arm}' are not those of its schedule")
    numbers = sorted({number for number in runs.values() if number > 1})
    if len(numbers) > 1:
        shown = " and ".join(map(str, numbers))
        raise ValueError(
            f"'{row.arm}' makes {shown} passes in different sublayers; a law has one number of "
            "passes for each model"
        )
    recurrent = sum(size for place, size in sizes.items() if runs[place] > 1)
    unused = sum(size for place, size in sizes.items() if runs[place] == 0)
    return (numbers[0] if numbers else 1), recurrent, unused


def _pooled(table: Table, names: Sequence[str]) -> Iterator[Row]:
    """The filled rows of the named parts, or of all, part by part and arm by arm."""
    parts = table.where(is_tuning=False).by("part")
    for name in names:
        if name not in parts:
            raise ValueError(f"no part '{name}'; the study has: {', '.join(parts)}")
    parts = {
        name: part for name, part in parts.items() if part.arms and (not names or name in names)
    }
    data = {part.first.data: name for name, part in reversed(parts.items())}
    if len(data) > 1:
        raise ValueError(
            f"the parts {' and '.join(reversed(data.values()))} have different data; name the "
            "parts of one law"
        )
    return (row for part in parts.values() for arm in part.arms.values() for row in arm)


def _check_measured_alike(one: tuple[Row, NllResult], first: tuple[Row, NllResult]) -> None:
    """Raise if the NLL of two runs is of different tokens, windows or arithmetic."""
    for name, (value, other) in {
        "data": (one[1].provenance.data, first[1].provenance.data),
        "context": (one[1].context, first[1].context),
        "compute type": (one[1].provenance.compute_dtype, first[1].provenance.compute_dtype),
        "documents": (one[1].scored, first[1].scored),
    }.items():
        if value != other:
            raise ValueError(
                f"{one[0].path}: NLL was measured with {name} {value}, and of {first[0].path} "
                f"with {other}"
            )


def _size(row: Row) -> str:
    """The size's name in the study file, or else layers and width; deeper arms say so."""
    if row.size is None:
        return f"{row.num_layers}x{row.d_model}"
    return row.size if row.deepened is None else f"{row.size}, {row.num_layers} layers"
