"""A part of a study in each of its sizes and budgets, and its runs that tune.

A part with several sizes or budgets becomes several parts of the plan, one for each combination.
The models of each are compared with each other. A part that tunes has another part for each size:
every model with every value of the tuned key, one seed, and the budget of tuning. Here a part of
the plan is a row that has no model yet.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mixerloop import runs
from mixerloop.config import Documents
from mixerloop.evaluation.nll_result import NllResult
from mixerloop.measures import MEASURES
from mixerloop.result_files import has_result, read_result
from mixerloop.studies.study import ArmSettings, PartSettings, SizeSettings
from mixerloop.studies.table import Row

TUNING = "tuning"
TUNING_MEASURE = "nll"
TUNING_DOCUMENTS: Documents = "tuning"


def parts_of(part: PartSettings) -> Iterator[tuple[Row, SizeSettings | None]]:
    """The parts of the plan: those that tune first, then sizes and budgets in the file's order."""
    sizes = part.sizes or (None,)
    budgets = tuple(map(int, part.tokens)) or (None,)
    if part.tune:
        budget = int(part.tune_tokens or min(part.tokens))
        for size in sizes:
            yield _part(part, size, budget, is_tuning=True), size
    for size in sizes:
        for tokens in budgets:
            yield _part(part, size, tokens), size


def _part(
    part: PartSettings, size: SizeSettings | None, tokens: int | None, *, is_tuning: bool = False
) -> Row:
    words = [part.name] if size is None else [part.name, size.name]
    if is_tuning:
        words.append(TUNING)
    elif tokens is not None:
        words.append(tokens_text(tokens))
    tested: Documents = "test" if part.tune else "all"
    return Row(
        part="-".join(words),
        family=part.name,
        size=None if size is None else size.name,
        tokens=tokens,
        is_tuning=is_tuning,
        match=part.match,
        data=" ".join(part.prepare),
        measure_in={measure: part.measured_in(measure) for measure in MEASURES},
        transport=part.transport,
        documents=TUNING_DOCUMENTS if is_tuning else tested,
        cpus=part.cpus,
        gpus=part.gpus,
    )


def run_name(part: str, title: str, seed: int) -> str:
    """The path of a run inside the study's folder."""
    return f"{part}/{title}-seed{seed}"


def tokens_text(tokens: int) -> str:
    """A number of tokens for a name, such as 300k or 1.5M."""
    for unit, suffix in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if tokens >= unit and tokens * 100 % unit == 0:
            return f"{tokens / unit:g}{suffix}"
    return str(tokens)


def arms_of(part: PartSettings, size: str | None) -> list[ArmSettings]:
    """The models that are trained in a size."""
    return [arm for arm in part.arms if size is None or not arm.sizes or size in arm.sizes]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The values of a tuned key that a model is trained with."""

    arm: ArmSettings
    key: str
    values: tuple[float, ...]

    def title(self, value: float) -> str:
        """The name of the model with a value."""
        return f"{self.arm.title}@{value:g}"


def sweeps_of(part: PartSettings, size: str | None) -> list[Sweep]:
    """The sweep of each model in a size; empty if the part does not tune."""
    return [
        Sweep(arm=arm, key=key, values=arm.tune.get(key, values))
        for key, values in part.tune.items()
        for arm in arms_of(part, size)
    ]


def tuned_values(part: PartSettings, size: str | None, folder: Path) -> dict[str, dict[str, float]]:
    """For each model the value of its key with the smallest NLL; none until its sweep is done."""
    tuned: dict[str, dict[str, float]] = {}
    name = "-".join([part.name, *([] if size is None else [size]), TUNING])
    for sweep in sweeps_of(part, size):
        nll: dict[float, float] = {}
        for value in sweep.values:
            results = folder / run_name(name, sweep.title(value), part.tune_seed) / runs.RESULTS
            if has_result(results, MEASURES[TUNING_MEASURE], TUNING_DOCUMENTS):
                result = read_result(results, MEASURES[TUNING_MEASURE])
                assert isinstance(result, NllResult)
                nll[value] = result.nll.value
        is_whole = len(nll) == len(sweep.values)
        best = {sweep.key: min(nll, key=nll.__getitem__)} if is_whole else {}
        tuned[sweep.arm.title] = best
    return tuned
