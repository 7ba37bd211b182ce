"""The cells of a study as points of a scaling law: parameters, passes, tokens and held-out NLL."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mixerloop.evaluation.nll_result import NllResult
from mixerloop.notation import parse
from mixerloop.reports.study_results import ArmResults, PartResults, RunResults, StudyResults
from mixerloop.study_folder import PLAN, PlannedArm, PlannedPart

NO_LOOP = "no_loop"
"""The name of all models without a loop, whatever their arms are called."""


@dataclass(frozen=True, kw_only=True)
class LawCell:
    """One trained model with one random seed."""

    loop: str
    """The name of the arm without a number of passes, so that several numbers are one loop."""
    size: str
    seed: int
    passes: int
    once: int
    """Parameters that run once per token; the embedding, which is also the head, is one of them."""
    recurrent: int
    """Parameters of the sublayers that run in several passes, norms included."""
    tokens: int
    """Training tokens."""
    nll: float
    """Held-out NLL in nats per token."""


@dataclass(frozen=True, kw_only=True)
class CellGroup:
    """Cells that differ in their seed only."""

    loop: str
    size: str
    passes: int
    once: int
    recurrent: int
    tokens: int
    nlls: tuple[float, ...]
    """The NLL of each seed."""

    @property
    def nll(self) -> float:
        """The mean over the seeds."""
        return float(np.mean(self.nlls))

    @property
    def parameters(self) -> int:
        """All parameters, each counted once."""
        return self.once + self.recurrent


def group_cells(cells: Iterable[LawCell]) -> list[CellGroup]:
    """Join the seeds of each loop, size, number of passes and budget."""
    groups: dict[tuple[str, str, int, int, int, int], list[float]] = {}
    for cell in cells:
        model = cell.loop, cell.size, cell.passes, cell.once, cell.recurrent
        groups.setdefault((*model, cell.tokens), []).append(cell.nll)
    return [
        CellGroup(
            loop=loop,
            size=size,
            passes=passes,
            once=once,
            recurrent=recurrent,
            tokens=tokens,
            nlls=tuple(nlls),
        )
        for (loop, size, passes, once, recurrent, tokens), nlls in groups.items()
    ]


def loops_of(groups: Iterable[CellGroup]) -> list[str]:
    """The names of the loops, without that of models without a loop."""
    return list(dict.fromkeys(group.loop for group in groups if group.loop != NO_LOOP))


def of_one_loop(groups: Iterable[CellGroup], loop: str) -> list[CellGroup]:
    """The groups that a loop's fit uses: those of the loop and those without a loop."""
    return [group for group in groups if group.loop in (NO_LOOP, loop)]


def read_cells(study: StudyResults, parts: Sequence[str] = ()) -> list[LawCell]:
    """The cells of all finished runs, or of the named parts; all must have the same data.

    Runs that tune are left out. Raises ValueError for results that cannot be pooled.
    """
    pooled = _pooled(study, parts)
    cells: list[LawCell] = []
    first: tuple[RunResults, NllResult] | None = None
    for part, arm, run in _runs(pooled):
        result = next((one for one in run.results.values() if isinstance(one, NllResult)), None)
        if result is None or not run.tokens or run.seed is None:
            lacks = "held-out NLL" if result is None else "record of its training"
            raise ValueError(f"{run.path}: has no {lacks}; a law needs both")
        first = first or (run, result)
        _check_measured_alike((run, result), first)
        passes, recurrent, unused = counts(arm.plan)
        cells.append(
            LawCell(
                loop=NO_LOOP if passes == 1 else loop_name(arm.name),
                size=_size(part.plan, arm.plan),
                seed=run.seed,
                passes=passes,
                once=arm.plan.parameters - recurrent - unused,
                recurrent=recurrent,
                tokens=run.tokens,
                nll=result.nll.value,
            )
        )
    if not cells:
        raise ValueError("the study has no finished runs yet")
    return cells


def loop_name(arm: str) -> str:
    """The name of an arm without its number of passes: `mixer_loop` for `mixer_loop(2)`."""
    named = re.fullmatch(r"(\w+)\s*\(\s*\d+\s*\)", arm)
    return arm if named is None else named[1]


def counts(arm: PlannedArm) -> tuple[int, int, int]:
    """The number of passes, the parameters that run in several passes, and those that never run."""
    if not arm.layer_parameters:
        raise ValueError(
            f"{PLAN} has no parameters of the sublayers of '{arm.name}': it was written by an "
            "older version; write it again: mixerloop study STUDY --out FOLDER"
        )
    runs = Counter((one.layer, one.sublayer) for one in parse(arm.schedule))
    sizes = {
        (layer, sublayer): size
        for layer, by_sublayer in enumerate(arm.layer_parameters)
        for sublayer, size in by_sublayer.items()
    }
    if not runs.keys() <= sizes.keys() or sum(sizes.values()) > arm.parameters:
        raise ValueError(f"{PLAN}: the parameters of '{arm.name}' are not those of its schedule")
    numbers = sorted({number for number in runs.values() if number > 1})
    if len(numbers) > 1:
        shown = " and ".join(map(str, numbers))
        raise ValueError(
            f"'{arm.name}' makes {shown} passes in different sublayers; a law has one number of "
            "passes for each model"
        )
    recurrent = sum(size for place, size in sizes.items() if runs[place] > 1)
    unused = sum(size for place, size in sizes.items() if runs[place] == 0)
    return (numbers[0] if numbers else 1), recurrent, unused


def _pooled(study: StudyResults, names: Sequence[str]) -> list[PartResults]:
    parts = [part for part in study.parts if not part.plan.is_tuning]
    known = [part.name for part in parts]
    for name in names:
        if name not in known:
            raise ValueError(f"no part '{name}'; the study has: {', '.join(known)}")
    parts = [part for part in parts if part.arms and (not names or part.name in names)]
    data = {part.plan.data: part.name for part in reversed(parts)}
    if len(data) > 1:
        raise ValueError(
            f"the parts {' and '.join(reversed(data.values()))} have different data; name the "
            "parts of one law"
        )
    return parts


def _runs(parts: Sequence[PartResults]) -> Iterator[tuple[PartResults, ArmResults, RunResults]]:
    for part in parts:
        for arm in part.arms:
            for run in arm.runs:
                yield part, arm, run


def _check_measured_alike(
    one: tuple[RunResults, NllResult], first: tuple[RunResults, NllResult]
) -> None:
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


def _size(part: PlannedPart, arm: PlannedArm) -> str:
    """The size's name in the study file, or else layers and width; deeper arms say so."""
    if part.size is None:
        return f"{arm.num_layers}x{arm.d_model}"
    return part.size if arm.deepened is None else f"{part.size}, {arm.num_layers} layers"
