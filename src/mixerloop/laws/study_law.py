"""Fit the law of each loop of a study, with intervals and errors of prediction."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from mixerloop.config import check_seed
from mixerloop.laws.fit import (
    PARAMETERS,
    Design,
    fit_groups,
    fit_numbers,
    law_of,
    predicted_nll,
)
from mixerloop.laws.identification import check_floor, check_identified, check_loops, remarks
from mixerloop.laws.law_result import (
    PUBLISHED_PHI,
    CellResidual,
    LawResult,
    LeftOutSize,
    LoopLaw,
)
from mixerloop.laws.points import Point, loops_of, of_one_loop, read_points
from mixerloop.laws.resampling import RESAMPLES, interval_ends, resampled_numbers
from mixerloop.parsing import checked
from mixerloop.reports.study_results import read_study
from mixerloop.results import Estimate, result_provenance
from mixerloop.study_folder import folder_named

Progress = Callable[[str, int, int], None]
SEEDS_FOR_INTERVAL = 3
"""Seeds of every cell from which an interval is called one over seeds."""
SIZES_TO_LEAVE_ONE_OUT = 3
"""Fewer leave a single size, which identifies no law."""


@checked
def fit_law(
    folder: Path | str,
    *,
    floor: float | None = None,
    parts: Sequence[str] = (),
    resamples: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> LawResult:
    """Fit what the passes of each loop are worth in parameters, from the cells of a study.

    `folder` may also be the name of a study in runs/. `floor` is E, if it is known from elsewhere.
    `parts` are the parts whose cells are pooled; by default all, which must then have the same
    data. `resamples` is the number behind each interval, by default `RESAMPLES`, and `seed` that of
    the resampling. Raises ValueError with the missing cells if the study identifies the law of no
    loop.
    """
    study = read_study(folder_named(folder))
    try:
        return law_of_points(
            read_points(study.table, parts),
            title=study.title,
            floor=floor,
            resamples=resamples,
            seed=seed,
            progress=progress,
        )
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None


def law_of_points(
    groups: Sequence[Point],
    *,
    title: str = "",
    floor: float | None = None,
    resamples: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> LawResult:
    """The same for points from anywhere."""
    check_seed(seed)
    resamples = RESAMPLES if resamples is None else resamples
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    check_loops(groups)
    check_floor(groups, floor)
    rejected: dict[str, str] = {}
    fitted: list[LoopLaw] = []
    said: list[str] = []
    for loop in loops_of(groups):
        try:
            check_identified(groups, loop, floor=floor)
        except ValueError as error:
            rejected[loop] = str(error).removeprefix(f"{loop}: ")
            continue
        fitted.append(
            _loop_law(
                of_one_loop(groups, loop),
                loop,
                floor=floor,
                resamples=resamples,
                seed=seed,
                progress=progress,
            )
        )
        said += remarks(groups, loop, floor=floor)
    if not fitted:
        raise ValueError("; ".join(f"{loop}: {reason}" for loop, reason in rejected.items()))
    return LawResult(
        title=title,
        loops=tuple(fitted),
        rejected=rejected,
        floor=floor,
        remarks=tuple(said),
        resamples=resamples,
        provenance=result_provenance(seed=seed),
    )


def _loop_law(
    groups: Sequence[Point],
    loop: str,
    *,
    floor: float | None,
    resamples: int,
    seed: int,
    progress: Progress | None,
) -> LoopLaw:
    design = Design(groups, floor=floor)
    numbers, run_sd = fit_numbers(design)
    fit = law_of(design, numbers, run_sd)
    rows = resampled_numbers(
        design,
        numbers,
        run_sd,
        resamples=resamples,
        seed=seed,
        progress=progress and (lambda done, total: progress(loop, done, total)),
    )
    (lower, upper), open_ended = interval_ends(design, rows)
    fewest = min(len(group.nlls) for group in groups)
    return LoopLaw(
        loop=loop,
        passes=tuple(sorted({group.passes for group in groups if group.loop == loop})),
        parameters={
            name: Estimate(
                value=value,
                lower=float(lower[n]),
                upper=float(upper[n]),
                over="seeds and cells" if fewest >= SEEDS_FOR_INTERVAL else "cells",
            )
            for n, (name, value) in enumerate(fit.values.items())
        },
        published_phi=PUBLISHED_PHI.get(loop),
        at_bound=tuple(name for name in PARAMETERS if name in {*fit.at_bound, *open_ended}),
        run_sd=run_sd,
        seed_sd=_seed_sd(groups),
        cells=tuple(
            CellResidual(
                loop=group.loop,
                size=group.size,
                passes=group.passes,
                once=group.once,
                recurrent=group.recurrent,
                tokens=group.tokens,
                seeds=len(group.nlls),
                nll=group.nll,
                fitted=group.nll - residual,
            )
            for group, residual in zip(groups, fit.residuals, strict=True)
        ),
        left_out=tuple(_left_out(groups, loop, floor=floor)),
    )


def _seed_sd(groups: Sequence[Point]) -> float | None:
    """The standard deviation of seeds, pooled over all cells; None without a second seed."""
    freedom = sum(len(group.nlls) - 1 for group in groups)
    if freedom == 0:
        return None
    squares = sum(float(((np.array(group.nlls) - group.nll) ** 2).sum()) for group in groups)
    return math.sqrt(squares / freedom)


def _left_out(groups: Sequence[Point], loop: str, *, floor: float | None) -> list[LeftOutSize]:
    """The errors of laws that are fitted without one size each, where the rest identifies a law."""
    sizes = list(dict.fromkeys(group.size for group in groups))
    if len(sizes) < SIZES_TO_LEAVE_ONE_OUT:
        return []
    errors = []
    for size in sizes:
        rest = [one for one in groups if one.size != size]
        try:
            check_identified(rest, loop, floor=floor)
        except ValueError:
            continue
        values = fit_groups(rest, floor=floor).values
        wrong = [
            one.nll
            - predicted_nll(
                values,
                once=one.once,
                recurrent=one.recurrent,
                passes=one.passes,
                tokens=one.tokens,
            )
            for one in groups
            if one.size == size
        ]
        errors.append(
            LeftOutSize(
                size=size,
                cells=len(wrong),
                mean_error=float(np.mean(wrong)),
                rms_error=float(np.sqrt(np.mean(np.square(wrong)))),
            )
        )
    return errors
