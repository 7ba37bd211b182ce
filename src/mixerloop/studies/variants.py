"""A part of a study in each of its sizes and budgets, and its runs that tune.

A part with several sizes or budgets becomes several parts of the plan, one for each combination.
The models of each are compared with each other. A part that tunes has another part for each size:
every model with every value of the tuned key, one seed, and the budget of tuning.
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

TUNING = "tuning"
TUNING_MEASURE = "nll"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A part in one size and with one budget."""

    part: PartSettings
    size: SizeSettings | None = None
    """None if the part names no sizes."""
    tokens: int | None = None
    """None for the budget of the part's config."""
    is_tuning: bool = False

    @property
    def name(self) -> str:
        """The name of the variant's folder: the part's name, the size and the budget."""
        words = [self.part.name]
        if self.size is not None:
            words.append(self.size.name)
        if self.is_tuning:
            words.append(TUNING)
        elif self.part.tokens:
            assert self.tokens is not None
            words.append(tokens_text(self.tokens))
        return "-".join(words)

    @property
    def arms(self) -> tuple[ArmSettings, ...]:
        """The models that are trained in this size."""
        return tuple(
            arm
            for arm in self.part.arms
            if self.size is None or not arm.sizes or self.size.name in arm.sizes
        )

    @property
    def documents(self) -> Documents:
        """The held-out documents that runs are measured on: those that tune are not reported."""
        if not self.part.tune:
            return "all"
        return "tuning" if self.is_tuning else "test"

    def run_name(self, title: str, seed: int) -> str:
        """The path of a run inside the study's folder."""
        return f"{self.name}/{title}-seed{seed}"


def variants_of(part: PartSettings) -> Iterator[Variant]:
    """The variants of a part: those that tune first, then sizes and budgets in the file's order."""
    sizes = part.sizes or (None,)
    budgets = tuple(map(int, part.tokens)) or (None,)
    if part.tune:
        budget = int(part.tune_tokens or min(part.tokens))
        for size in sizes:
            yield Variant(part=part, size=size, tokens=budget, is_tuning=True)
    for size in sizes:
        for tokens in budgets:
            yield Variant(part=part, size=size, tokens=tokens)


def tokens_text(tokens: int) -> str:
    """A number of tokens for a name, such as 300k or 1.5M."""
    for unit, suffix in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if tokens >= unit and tokens * 100 % unit == 0:
            return f"{tokens / unit:g}{suffix}"
    return str(tokens)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The values of a tuned key that a model is trained with."""

    arm: ArmSettings
    key: str
    values: tuple[float, ...]

    def title(self, value: float) -> str:
        """The name of the model with a value."""
        return f"{self.arm.title}@{value:g}"


def sweeps_of(variant: Variant) -> list[Sweep]:
    """The sweep of each model of a variant; empty if its part does not tune."""
    return [
        Sweep(arm=arm, key=key, values=arm.tune.get(key, values))
        for key, values in variant.part.tune.items()
        for arm in variant.arms
    ]


def tuned_value(folder: Path, variant: Variant, sweep: Sweep) -> float | None:
    """The value with the smallest NLL; None while a run of the sweep is not measured."""
    tuning = Variant(part=variant.part, size=variant.size, is_tuning=True)
    measure, nll = MEASURES[TUNING_MEASURE], {}
    for value in sweep.values:
        name = tuning.run_name(sweep.title(value), variant.part.tune_seed)
        results = folder / name / runs.RESULTS
        if not has_result(results, measure, tuning.documents):
            return None
        result = read_result(results, measure)
        assert isinstance(result, NllResult)
        nll[value] = result.nll.value
    return min(nll, key=nll.__getitem__)
