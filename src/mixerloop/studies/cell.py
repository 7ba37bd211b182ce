"""A cell: one model of a study with one random seed."""

import dataclasses
from dataclasses import dataclass

from mixerloop.config import RunConfig
from mixerloop.studies.matching import amounts
from mixerloop.studies.study import ArmSettings, PartSettings
from mixerloop.studies.variants import Variant, sweeps_of
from mixerloop.training.parent import Parent


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One model with one random seed."""

    number: int
    """Counted from 1 over all parts."""
    variant: Variant
    arm: str
    """The name of the model: the arm's, with the tuned value in a run that tunes."""
    arm_settings: ArmSettings
    """The arm in the study file."""
    seed: int
    config: RunConfig
    context: int | None
    """Tokens of a window; None if neither the config nor the data decides."""
    measure: tuple[str, ...]
    parameters: int
    flops_per_token: float
    """Operations of a forward and a backward pass."""
    cpus: int
    gpus: int
    parent: Parent | None = None
    """The model whose weights this one starts from; None for fresh weights."""
    waits_for_tuning: bool = False
    """Whether the tuned key has no value yet: the runs that tune it come first."""

    @property
    def part(self) -> str:
        """The name of the cell's part in the plan."""
        return self.variant.name

    @property
    def settings(self) -> PartSettings:
        """The cell's part in the study file."""
        return self.variant.part

    @property
    def name(self) -> str:
        """The path of the cell's run inside the study's folder."""
        return self.variant.run_name(self.arm, self.seed)

    @property
    def names_dtype(self) -> bool:
        """Whether the arm has a compute type of its own in the study file."""
        return self.arm_settings.train.get("compute_dtype", "auto") != "auto"

    def amounts(self) -> dict[str, float]:
        """The amounts of its training; empty without a context."""
        if self.context is None:
            return {}
        return amounts(self.config, context=self.context, flops_per_token=self.flops_per_token)

    def possible(self) -> list["Cell"]:
        """The cell itself, or with each value that tuning may choose for it."""
        if not self.waits_for_tuning:
            return [self]
        _, train = self.config.for_training()
        with_value = [
            dataclasses.replace(train, **{key.removeprefix("train."): value})
            for sweep in sweeps_of(self.variant)
            for key, value in ((sweep.key, value) for value in sweep.values)
            if sweep.arm == self.arm_settings and key.startswith("train.")
        ]
        return [
            dataclasses.replace(self, config=dataclasses.replace(self.config, train=train))
            for train in with_value or [train]
        ]
