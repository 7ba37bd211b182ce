"""Turn a study file into cells: each is one model with one seed, to be trained and measured."""

import dataclasses
import math
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mixerloop import config as configs
from mixerloop.config import BUDGETS, ComputeDtypeChoice, ModelConfig, RunConfig
from mixerloop.files import is_there, write_sealed
from mixerloop.kinds import MOST_LAYERS
from mixerloop.measures import MEASURES
from mixerloop.model.accounting import account_model, training_flops_per_token
from mixerloop.model.initialization import meta_model
from mixerloop.notation import notation
from mixerloop.ops.precision import choose_compute_dtype
from mixerloop.results import encode, result_provenance
from mixerloop.studies.study import ArmSettings, PartSettings, StudyFile, preparation_of
from mixerloop.study_folder import (
    DATA,
    PLAN,
    PREFILL,
    Match,
    PlannedArm,
    PlannedCell,
    PlannedPart,
    StudyPlan,
    read_plan,
)

FLOPS_AGREE = 0.05
"""The largest relative error in compute per token that `layers_for_flops_of` accepts."""
BUDGET_FOR: dict[Match, tuple[str, ...]] = {
    "parameters+tokens": ("steps", "tokens"),
    "flops": ("flops",),
    "seconds": ("seconds",),
}
"""The kinds of budget that give all models the same amount of the matched quantity."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One model with one random seed."""

    number: int
    """Counted from 1 over all parts."""
    part: str
    arm: str
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

    @property
    def name(self) -> str:
        """The path of the cell's run inside the study's folder."""
        return f"{self.part}/{self.arm}-seed{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All cells of a study, and the study's folder."""

    file: StudyFile
    folder: Path
    cells: tuple[Cell, ...]

    def of(self, part: str) -> list[Cell]:
        """The cells of one part, in the order of their numbers."""
        return [cell for cell in self.cells if cell.part == part]

    def run(self, cell: Cell) -> Path:
        """The folder of a cell's run."""
        return self.folder / cell.name

    def data(self, part: str) -> Path:
        """The folder of a part's prepared data."""
        return self.folder / DATA / part

    def write(self) -> None:
        """Write plan.json, which reports and `study status` read."""
        write_sealed(self.folder / PLAN, encode(self.summary()))

    def check_unchanged(self) -> None:
        """Reject a folder whose data or measurements were made under another plan."""
        if not is_there(self.folder / PLAN):
            return
        before, now = read_plan(self.folder), self.summary()
        parts = {part.name: part for part in before.parts}
        for part in now.parts:
            before_part = parts.get(part.name, part)
            changes: list[tuple[str, object, object]] = [
                ("data", before_part.data, part.data),
                ("transport", encode(before_part.transport), encode(part.transport)),
            ]
            changes += [
                (f"{measure} in", before_part.measured_in(measure), part.measured_in(measure))
                for measure in before_part.measure
            ]
            for setting, old, new in changes:
                if old != new:
                    raise ValueError(
                        f"{self.folder}: {part.name} was made with {setting} {old}, and the study "
                        f"now says {new}; choose another folder"
                    )
        if before.prefill != now.prefill and is_there(self.folder / PREFILL):
            raise ValueError(
                f"{self.folder / PREFILL}: was measured with {encode(before.prefill)}, and the "
                "study now says other; remove it or choose another folder"
            )

    def summary(self) -> StudyPlan:
        """The content of plan.json: parts with their models, and cells."""
        study = self.file.study
        return StudyPlan(
            name=self.file.path.stem,
            title=study.title,
            about=study.about.strip(),
            parts=tuple(self._part(part) for part in study.parts),
            cells=tuple(
                PlannedCell(
                    number=cell.number,
                    name=cell.name,
                    part=cell.part,
                    arm=cell.arm,
                    seed=cell.seed,
                    measure=cell.measure,
                )
                for cell in self.cells
            ),
            prefill=study.prefill,
            provenance=result_provenance(),
        )

    def _part(self, part: PartSettings) -> PlannedPart:
        return PlannedPart(
            name=part.name,
            match=part.match,
            measure=part.measure,
            seeds=part.seeds,
            data=" ".join(part.prepare),
            compute_dtype=self._compute_dtype(part),
            measure_in={measure: part.measured_in(measure) for measure in MEASURES},
            transport=part.transport,
            arms=tuple(self._arm(part, arm) for arm in part.arms),
        )

    def _compute_dtype(self, part: PartSettings) -> ComputeDtypeChoice:
        _, train = self.of(part.name)[0].config.for_training()
        return train.compute_dtype

    def _arm(self, part: PartSettings, arm: ArmSettings) -> PlannedArm:
        cell = next(cell for cell in self.of(part.name) if cell.arm == arm.title)
        return planned_arm(
            arm.title,
            cell.config.model,
            deepened=arm.layers_for_flops_of,
            parameters=cell.parameters,
            flops_per_token=cell.flops_per_token,
        )


def planned_arm(
    name: str,
    model: ModelConfig,
    *,
    deepened: str | None = None,
    parameters: int,
    flops_per_token: float,
) -> PlannedArm:
    """A model's entry in plan.json: its schedule, sizes and compute."""
    return PlannedArm(
        name=name,
        schedule=notation(model.occurrences()),
        deepened=deepened,
        num_layers=model.num_layers,
        d_model=model.d_model,
        vocab_size=model.vocab_size,
        parameters=parameters,
        flops_per_token=flops_per_token,
        macs={**account_model(model).projection_macs()},
    )


def make_plan(file: StudyFile, folder: Path) -> Plan:
    """Turn a study file into cells; rejects every mistake that shows before training."""
    cells: list[Cell] = []
    for index, part in enumerate(file.study.parts):
        models = _models(file, index, part, folder)
        _check_match(file, f"parts[{index}]", part, models)
        models = {name: _in_one_dtype(config, part, folder) for name, config in models.items()}
        for seed in part.seeds:
            for arm in part.arms:
                config = models[arm.title]
                _, train = config.for_training()
                seeded = dataclasses.replace(train, seed=seed)
                cells.append(
                    Cell(
                        number=len(cells) + 1,
                        part=part.name,
                        arm=arm.title,
                        seed=seed,
                        config=dataclasses.replace(config, train=seeded),
                        context=_context(config, part),
                        measure=part.measure,
                        parameters=_parameters(config.model),
                        flops_per_token=_flops(config, part),
                        cpus=part.cpus,
                        gpus=part.gpus,
                    )
                )
    return Plan(file=file, folder=folder, cells=tuple(cells))


def _models(file: StudyFile, index: int, part: PartSettings, folder: Path) -> dict[str, RunConfig]:
    """The config of every arm, without its budget."""
    here = f"parts[{index}]"
    path = file.path.parent / part.config
    if not path.is_file():
        raise file.refused(f"{here}.config", f"{part.config}: there is no such config")
    data = {"path": str(folder / DATA / part.name), **part.data}
    models: dict[str, RunConfig] = {}
    for arm in sorted(part.arms, key=lambda arm: arm.layers_for_flops_of is not None):
        overrides: configs.Tables = {
            "model": {**part.model, "schedule": arm.schedule},
            "data": data,
            "train": part.train,
        }
        try:
            config = configs.load(path, overrides)
            config.for_training()
        except ValueError as error:
            raise file.refused(_place(here, part, error), error) from None
        if arm.layers_for_flops_of is not None:
            other = models[arm.layers_for_flops_of]
            config = _deepened(file, here, part, arm, config, other)
        models[arm.title] = config
    return models


def _in_one_dtype(config: RunConfig, part: PartSettings, folder: Path) -> RunConfig:
    """Replace the compute type `auto` by that of an earlier plan, or else of this machine's CPU.

    All cells compute in one type, wherever they run. In a part for GPUs each cell resolves `auto`.
    """
    _, train = config.for_training()
    if train.compute_dtype != "auto" or part.gpus:
        return config
    planned = read_plan(folder).parts if is_there(folder / PLAN) else ()
    before = [earlier.compute_dtype for earlier in planned if earlier.name == part.name]
    dtype = before[0] if before else choose_compute_dtype("auto", "cpu")
    return dataclasses.replace(config, train=dataclasses.replace(train, compute_dtype=dtype))


def _place(here: str, part: PartSettings, error: ValueError) -> str:
    """The part's key that an error about a config names, or else the part's arms."""
    for section in ("model", "data", "train"):
        for key in getattr(part, section):
            named = re.search(rf"\b{section}\.(\w+\.)?{key}\b", str(error))
            if named or f"unknown key {key};" in str(error):
                return f"{here}.{section}.{key}"
    return f"{here}.arms"


def _deepened(
    file: StudyFile,
    here: str,
    part: PartSettings,
    arm: ArmSettings,
    config: RunConfig,
    other: RunConfig,
) -> RunConfig:
    """A config with the number of layers whose compute per token is nearest to another model's."""
    flops = partial(_flops, part=part)
    wanted = flops(other)
    nearest = config
    period = math.lcm(len(config.model.mixer), len(config.model.ffn))
    most = min(64 * config.model.num_layers, MOST_LAYERS + 1)
    for num_layers in range(period, most, period):
        model = dataclasses.replace(config.model, num_layers=num_layers)
        candidate = dataclasses.replace(config, model=model)
        if abs(flops(candidate) - wanted) < abs(flops(nearest) - wanted):
            nearest = candidate
        if flops(candidate) > wanted:
            break
    off = flops(nearest) / wanted - 1
    if abs(off) > FLOPS_AGREE:
        raise file.refused(
            f"{here}.arms",
            f"'{arm.title}' with {nearest.model.num_layers} layers comes to {off:+.0%} of the "
            f"compute of '{arm.layers_for_flops_of}'; no number of layers comes nearer",
        )
    return nearest


def _check_match(
    file: StudyFile, here: str, part: PartSettings, models: dict[str, RunConfig]
) -> None:
    """Reject a budget that would not be equal.

    Parameters are equal already: arms differ only in their schedules. The table of a learned
    residual has a row for each pass and is not counted.
    """
    _, train = models[part.arms[0].title].for_training()
    budget = next(name for name in BUDGETS if getattr(train, name) is not None)
    if budget not in BUDGET_FOR[part.match]:
        needed = " or ".join(BUDGET_FOR[part.match])
        raise file.refused(
            f"{here}.match", f"'{part.match}' needs a budget in {needed}, and train has {budget}"
        )


def _context(config: RunConfig, part: PartSettings) -> int | None:
    """Tokens of a window; None if neither the config nor the data decides."""
    data, _ = config.for_training()
    return data.context or preparation_of(part).context


def _flops(config: RunConfig, part: PartSettings) -> float:
    model = meta_model(config.model, form="torch")
    context = _context(config, part)
    if context is None:
        return training_flops_per_token(model)
    return training_flops_per_token(model, context=context)


def _parameters(config: ModelConfig) -> int:
    model = meta_model(config, form="torch")
    return sum(parameter.numel() for parameter in model.parameters())
