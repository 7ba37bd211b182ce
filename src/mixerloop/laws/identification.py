"""Which parameters the cells of a study identify, and which cells are missing.

The law is a size term plus a token term plus the floor E:

- beta and B come from three token budgets of one size: two differences for two parameters. The
  token term of every budget is then known, and what remains of each NLL is E plus the size term.
- A, alpha and E come from three sizes of no_loop. With two sizes the cells of the loop must add
  what is missing: each of its models (a size with a number of passes) adds a value, and all of them
  together one parameter, phi. E, alpha and phi are then identified only together, and only if r^phi
  is the right form.
- phi comes from any model of the loop beside the curve of no_loop. It needs no second ratio of
  N_rec to N_once, because no_loop identifies A. But with one number of passes phi is only another
  word for the loop's gain: whether passes count as r^phi is tested by two numbers or more.
- A given floor leaves one parameter less: two sizes of no_loop are then enough with three budgets,
  and two budgets with three sizes of no_loop.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from mixerloop.laws.fit import PARAMETERS, Design
from mixerloop.laws.points import NO_LOOP, Point, loops_of, of_one_loop

DISTINCT = 1.05
"""Sizes and budgets count as different if their ratio is at least this."""
FEWEST_BUDGETS, FEWEST_SIZES = 3, 3
FEWEST_OF_EITHER = 2
FEWEST_LOOP_MODELS = 2
"""Models of the loop that take the place of a third size of no_loop."""
REFERENCE = np.array([0.0, 0.0, math.log(0.3), 0.0, math.log(0.3), 0.5])
"""A plausible law, at which the derivatives of all parameters are compared."""
SINGULAR = 1e-7
"""The ratio of singular values below which parameters cannot be told apart by any precision."""
NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven")


def check_loops(groups: Sequence[Point]) -> None:
    """Raise ValueError if a study has no loop, or no model without a loop."""
    if not loops_of(groups):
        sizes = ", ".join(sorted({group.size for group in groups}))
        raise ValueError(f"phi needs cells with passes above 1; the study has {NO_LOOP} of {sizes}")
    if not any(group.loop == NO_LOOP for group in groups):
        has = ", ".join(loops_of(groups))
        raise ValueError(f"A and alpha need cells of {NO_LOOP} (one pass); the study has {has}")


def check_floor(groups: Sequence[Point], floor: float | None) -> None:
    """Raise ValueError for a floor that the law cannot have."""
    smallest = min(group.nll for group in groups)
    if floor is not None and not 0 <= floor < smallest:
        raise ValueError(f"floor must be from 0 to the smallest NLL, {smallest:.4f}, got {floor}")


def check_identified(groups: Sequence[Point], loop: str, *, floor: float | None = None) -> None:
    """Raise ValueError, with all that is missing, if the cells do not identify a loop's law."""
    groups = of_one_loop(groups, loop)
    if reasons := list(_missing(groups, loop, floor=floor)):
        raise ValueError(f"{loop}: {'; '.join(reasons)}")
    if apart := _not_told_apart(Design(groups, floor=floor)):
        raise ValueError(
            f"{loop}: {' and '.join(apart)} cannot be told apart by these cells; sizes and budgets "
            "must vary independently of each other"
        )


def remarks(groups: Sequence[Point], loop: str, *, floor: float | None = None) -> list[str]:
    """What a reader of an identified law should know about its cells."""
    groups = of_one_loop(groups, loop)
    said = []
    sizes = len(_distinct(group.parameters for group in groups if group.loop == NO_LOOP))
    if floor is None and sizes < FEWEST_SIZES:
        said.append(
            f"{loop}: two sizes of {NO_LOOP}: E and alpha rest on the loop's own cells, and on "
            "r^phi being the right form"
        )
    passes = {group.passes for group in groups if group.loop == loop}
    if len(passes) == 1:
        said.append(
            f"{loop}: one number of passes ({min(passes)}): phi restates the loop's gain, and the "
            "form r^phi is not tested"
        )
    if min(len(group.nlls) for group in groups) < 3:
        said.append(
            f"{loop}: fewer than three seeds in some cells: the intervals are over cells only"
        )
    return said


def _missing(groups: Sequence[Point], loop: str, *, floor: float | None) -> Iterator[str]:
    """What each parameter needs and the study lacks."""
    sizes = _distinct(group.parameters for group in groups if group.loop == NO_LOOP)
    budgets, size = _most_budgets(groups)
    names = {group.parameters: group.size for group in groups if group.loop == NO_LOOP}
    have_sizes = f"the study has {_listed([names[number] for number in sizes])}"
    have_budgets = f"the study has {_listed([f'{number:,}' for number in budgets])} of {size}"
    if len(sizes) < FEWEST_OF_EITHER:
        yield f"alpha needs two sizes or more of {NO_LOOP}; {have_sizes}"
    if floor is None and len(budgets) < FEWEST_BUDGETS:
        yield (
            f"E, B and beta need three token budgets or more of one size; {have_budgets}; add a "
            "budget, or give the floor E and three sizes"
        )
    elif len(budgets) < FEWEST_OF_EITHER:
        yield f"beta needs two token budgets or more of one size; {have_budgets}"
    elif len(budgets) < FEWEST_BUDGETS and len(sizes) < FEWEST_SIZES:
        yield (
            f"B and beta need three token budgets of one size, or three sizes of {NO_LOOP}; "
            f"{have_budgets}, and {_listed([names[number] for number in sizes])}"
        )
    models = {(group.once, group.recurrent, group.passes) for group in groups if group.loop == loop}
    if floor is None and len(sizes) == FEWEST_OF_EITHER and len(models) < FEWEST_LOOP_MODELS:
        yield (
            f"E and alpha need three sizes of {NO_LOOP}, or two with the loop in both; "
            f"{have_sizes}, and one model of the loop"
        )
    num_parameters = len(PARAMETERS) - (floor is not None)
    if len(groups) < num_parameters + 1:
        yield (
            f"{num_parameters} parameters need {num_parameters + 1} cells or more that differ in "
            f"more than the seed; the study has {len(groups)}"
        )


def _most_budgets(groups: Sequence[Point]) -> tuple[list[int], str]:
    """The budgets of the size that has most of them, and the name of the size."""
    by_size: dict[str, list[int]] = {}
    for group in groups:
        by_size.setdefault(group.size, []).append(group.tokens)
    size = max(by_size, key=lambda name: len(_distinct(by_size[name])))
    return _distinct(by_size[size]), size


def _distinct(numbers: Iterable[int]) -> list[int]:
    """The numbers that differ from each other by more than rounding, in order."""
    distinct: list[int] = []
    for number in sorted(set(numbers)):
        if not distinct or number >= DISTINCT * distinct[-1]:
            distinct.append(number)
    return distinct


def _listed(names: Sequence[str]) -> str:
    count = NUMBERS[len(names)] if len(names) < len(NUMBERS) else str(len(names))
    return f"{count}: {', '.join(names)}" if names else count


def _not_told_apart(design: Design) -> list[str]:
    """Parameters that move the law of these cells in the same way; none if all are identified."""
    jacobian = design.weights[:, None] * design.jacobian(REFERENCE)[:, design.free]
    lengths = np.linalg.norm(jacobian, axis=0)
    if not lengths.all():
        return [PARAMETERS[n] for n, length in zip(design.free, lengths, strict=True) if not length]
    _, singular, directions = np.linalg.svd(jacobian / lengths, full_matrices=False)
    if singular[-1] > SINGULAR * singular[0]:
        return []
    shares = zip(design.free, np.abs(directions[-1]), strict=True)
    return [PARAMETERS[n] for n, share in shares if share > 0.1]
