"""Turn a study file into cells: each is one model with one seed, to be trained and measured."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mixerloop import catalog
from mixerloop import config as configs
from mixerloop.config import BUDGETS, ModelConfig, RunConfig
from mixerloop.files import is_there, write_sealed
from mixerloop.interop.parents import open_parent
from mixerloop.kinds import MOST_LAYERS
from mixerloop.measures import MEASURES
from mixerloop.model.accounting import CONTEXT, account_model
from mixerloop.model.initialization import meta_model
from mixerloop.notation import notation
from mixerloop.ops.precision import choose_compute_dtype
from mixerloop.results import encode, result_provenance
from mixerloop.schedule import BLOCK
from mixerloop.studies.cell import Cell
from mixerloop.studies.matching import FLOPS_AGREE, differences
from mixerloop.studies.plan_checks import check_plan
from mixerloop.studies.study import PARENT, ArmSettings, PartSettings, StudyFile, preparation_of
from mixerloop.studies.variants import (
    TUNING_MEASURE,
    Variant,
    sweeps_of,
    tuned_value,
    variants_of,
)
from mixerloop.study_folder import (
    DATA,
    PLAN,
    PREFILL,
    PlannedArm,
    PlannedCell,
    PlannedParent,
    PlannedPart,
    StudyPlan,
    read_plan,
)
from mixerloop.training.opened import recipe_of
from mixerloop.training.parent import Parent, fresh_names


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All cells of a study, and the study's folder."""

    file: StudyFile
    folder: Path
    cells: tuple[Cell, ...]
    parent: Path | None = None
    """The run that stands for {parent} in the study file."""

    @property
    def variants(self) -> list[Variant]:
        """The parts of the plan, in the order of their cells."""
        return [variant for part in self.file.study.parts for variant in variants_of(part)]

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
                ("from", _weights_text(before_part.parent), _weights_text(part.parent)),
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
            parts=tuple(map(self._part, self.variants)),
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

    def _part(self, variant: Variant) -> PlannedPart:
        part, cells = variant.part, self.of(variant.name)
        shared = [cell for cell in cells if not cell.names_dtype] or cells
        _, train = shared[0].config.for_training()
        return PlannedPart(
            name=variant.name,
            match=part.match,
            measure=tuple(dict.fromkeys(name for cell in cells for name in cell.measure)),
            seeds=tuple(dict.fromkeys(cell.seed for cell in cells)),
            data=" ".join(part.prepare),
            compute_dtype=train.compute_dtype,
            measure_in={measure: part.measured_in(measure) for measure in MEASURES},
            transport=part.transport,
            arms=tuple(self._arms(variant)),
            family=part.name,
            size=None if variant.size is None else variant.size.name,
            tokens=variant.tokens,
            is_tuning=variant.is_tuning,
            documents=variant.documents,
            parent=None if cells[0].parent is None else _planned_parent(cells[0].parent),
        )

    def _arms(self, variant: Variant) -> Iterator[PlannedArm]:
        cells = {cell.arm: cell for cell in self.of(variant.name)}
        tunes = {
            sweep.title(value): (sweep, value)
            for sweep in sweeps_of(variant)
            for value in sweep.values
            if variant.is_tuning
        }
        tuned = {} if variant.is_tuning else _tuned(variant, self.folder)
        differs = differences({title: cell.config for title, cell in cells.items()})
        for title, cell in cells.items():
            arm = planned_arm(
                title,
                cell.config.model,
                deepened=cell.arm_settings.layers_for_flops_of,
                parameters=cell.parameters,
                flops_per_token=cell.flops_per_token,
            )
            arm = dataclasses.replace(arm, amounts=cell.amounts(), differs=differs[title])
            if cell.parent is not None:
                fresh = fresh_names(meta_model(cell.config.model), cell.parent)
                arm = dataclasses.replace(arm, fresh=fresh)
            if title in tunes:
                sweep, value = tunes[title]
                arm = dataclasses.replace(arm, tunes=sweep.arm.title, tuned={sweep.key: value})
            yield dataclasses.replace(arm, tuned=tuned[title]) if title in tuned else arm


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
        layer_parameters=tuple(_layer_parameters(model)),
    )


def _layer_parameters(config: ModelConfig) -> Iterator[dict[str, int]]:
    """For each layer the parameters of its mixer and of its ffn, norms included."""
    for layer in meta_model(config, form="torch").layers:
        yield {
            sublayer: sum(
                parameter.numel()
                for name, parameter in layer.named_parameters()
                if name.startswith(sublayer)
            )
            for sublayer in BLOCK
        }


def _planned_parent(parent: Parent) -> PlannedParent:
    return PlannedParent(
        folder=str(parent.folder),
        sha256=parent.sha256,
        schedule=notation(parent.model.occurrences()),
        step=parent.step,
    )


def _weights_text(parent: PlannedParent | None) -> str:
    return "fresh weights" if parent is None else f"the weights {parent.sha256[:10]}"


def make_plan(file: StudyFile, folder: Path, *, parent: Path | None = None) -> Plan:
    """Turn a study file into cells; rejects every mistake that shows before training.

    The tuned keys have the values that the runs in `folder` have chosen by now. `parent` is the run
    that stands for {parent} in the file.
    """
    if parent is not None and all(part.parent != PARENT for part in file.study.parts):
        raise ValueError(f'{file.path}: no part has from = "{PARENT}", so parent has no meaning')
    cells: list[Cell] = []
    for index, part in enumerate(file.study.parts):
        opened = _opened_parent(file, index, parent)
        for variant in variants_of(part):
            for arm, title, seed, config, waits in _models(file, index, variant, folder, opened):
                _, train = config.for_training()
                seeded = dataclasses.replace(train, seed=seed)
                with file.at(f"parts[{index}].arms", f"'{title}': "):
                    cell = Cell(
                        number=len(cells) + 1,
                        variant=variant,
                        arm=title,
                        arm_settings=arm,
                        seed=seed,
                        config=dataclasses.replace(config, train=seeded),
                        context=_context(config, part),
                        measure=_measures(variant, config.model),
                        parameters=_parameters(config.model),
                        flops_per_token=_flops(config, part),
                        cpus=part.cpus,
                        gpus=part.gpus,
                        parent=opened,
                        waits_for_tuning=waits,
                    )
                cells.append(cell)
    check_plan(file, cells)
    return Plan(file=file, folder=folder, cells=tuple(cells), parent=parent)


def _opened_parent(file: StudyFile, index: int, given: Path | None) -> Parent | None:
    """The parent of a part; `given` stands for {parent}."""
    named, place = file.study.parts[index].parent, f"parts[{index}].from"
    if named is None:
        return None
    path = given if named == PARENT else file.path.parent / named
    if path is None:
        raise file.refused(place, "these models start from a run of yours: --parent RUN")
    with file.at(place):
        return open_parent(path.resolve())


def _models(
    file: StudyFile, index: int, variant: Variant, folder: Path, parent: Parent | None
) -> Iterator[tuple[ArmSettings, str, int, RunConfig, bool]]:
    """Arm, title, seed and config of each run, and whether the config waits for tuning."""
    part, here = variant.part, f"parts[{index}]"
    if variant.is_tuning:
        sweeps = sweeps_of(variant)
        values = {value for sweep in sweeps for value in sweep.values}
        with_value = {
            value: _configs(
                file, here, variant, folder, {s.arm.title: {s.key: value} for s in sweeps}, parent
            )
            for value in values
        }
        for sweep in sweeps:
            for value in sweep.values:
                config = with_value[value][sweep.arm.title]
                yield sweep.arm, sweep.title(value), part.tune_seed, config, False
        return
    tuned = _tuned(variant, folder)
    by_arm = _configs(file, here, variant, folder, tuned, parent)
    seeds = {arm.title: arm.seeds or part.seeds for arm in variant.arms}
    for turn in range(max(map(len, seeds.values()))):  # the first seed of every model comes first
        for arm in variant.arms:
            title = arm.title
            if turn < len(seeds[title]):
                waits = bool(part.tune) and not tuned[title]
                yield arm, title, seeds[title][turn], by_arm[title], waits


def _tuned(variant: Variant, folder: Path) -> dict[str, dict[str, float]]:
    """The value of the tuned key for each model; empty while it is not known."""
    tuned: dict[str, dict[str, float]] = {}
    for sweep in sweeps_of(variant):
        value = tuned_value(folder, variant, sweep)
        tuned[sweep.arm.title] = {} if value is None else {sweep.key: value}
    return tuned


def _configs(
    file: StudyFile,
    here: str,
    variant: Variant,
    folder: Path,
    tuned: Mapping[str, Mapping[str, float]],
    parent: Parent | None,
) -> dict[str, RunConfig]:
    """The config of every model of a variant, in the order of the study file."""
    part = variant.part
    with file.at(f"{here}.config"):
        path = catalog.config_file(part.config, beside=file.path.parent)
    if not path.is_file():
        raise file.refused(f"{here}.config", f"{part.config}: there is no such config")
    found: dict[str, RunConfig] = {}
    for arm in sorted(variant.arms, key=lambda arm: arm.layers_for_flops_of is not None):
        overrides = _overrides(variant, arm, folder, tuned.get(arm.title, {}))
        try:
            config = configs.load(path, overrides, base=None if parent is None else parent.model)
            config.for_training()
        except ValueError as error:
            raise file.refused(_place(here, part, error), error) from None
        if arm.layers_for_flops_of is not None:
            if arm.layers_for_flops_of not in found:
                reason = f"'{arm.layers_for_flops_of}' has no size {variant.name}"
                raise file.refused(f"{here}.arms", reason)
            config = _deepened(file, here, part, arm, config, found[arm.layers_for_flops_of])
        if parent is not None:
            _check_parent(file, here, arm, config, parent)
        found[arm.title] = config
    return {arm.title: _in_one_dtype(found[arm.title], variant, folder) for arm in variant.arms}


def _check_parent(
    file: StudyFile, here: str, arm: ArmSettings, config: RunConfig, parent: Parent
) -> None:
    """Reject a model that cannot take all weights of its parent."""
    with file.at(f"{here}.from", f"'{arm.title}': "):
        fresh_names(meta_model(config.model), parent)


def _overrides(
    variant: Variant, arm: ArmSettings, folder: Path, tuned: Mapping[str, float]
) -> configs.Tables:
    """The keys that replace those of the config: the part's, the size's, the arm's, the tuned."""
    part, size = variant.part, variant.size
    model: dict[str, Any] = {**part.model, **({} if size is None else size.model), **arm.model}
    train: dict[str, Any] = {**part.train, **({} if size is None else size.train), **arm.train}
    tables = {
        "model": {**model, "schedule": arm.schedule},
        "data": {"path": str(folder / DATA / part.name), **part.data, **arm.data},
        "train": train,
    }
    if variant.tokens is not None:
        kept = {key: value for key, value in train.items() if key not in BUDGETS}
        tables["train"] = {**kept, "tokens": variant.tokens}
    for key, value in tuned.items():
        section, _, name = key.partition(".")
        tables[section] = {**tables[section], name: value}
    return tables


def _in_one_dtype(config: RunConfig, variant: Variant, folder: Path) -> RunConfig:
    """Replace the compute type `auto` by that of an earlier plan, or else of this machine's CPU.

    All cells compute in one type, wherever they run. In a part for GPUs each cell resolves `auto`.
    """
    _, train = config.for_training()
    if train.compute_dtype != "auto" or variant.part.gpus:
        return config
    planned = read_plan(folder).parts if is_there(folder / PLAN) else ()
    before = [earlier.compute_dtype for earlier in planned if earlier.name == variant.name]
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
    flops, layers = partial(_flops, part=part), config.model.num_layers
    wanted = flops(other)
    period = math.lcm(len(config.model.mixer), len(config.model.ffn))

    def of(periods: int) -> RunConfig:
        with file.at(f"{here}.arms", f"'{arm.title}' needs a named loop for layers_for_flops_of: "):
            model = dataclasses.replace(config.model, num_layers=periods * period)
        return dataclasses.replace(config, model=model)

    first, second = flops(of(1)), flops(of(2))
    exact = 1 + (wanted - first) / (second - first)  # layers of a named loop cost the same
    most = min(64 * layers, MOST_LAYERS) // period
    around = {min(max(1, number), most) for number in (math.floor(exact), math.ceil(exact))}
    nearest = min(map(of, sorted(around)), key=lambda one: abs(flops(one) - wanted))
    off = flops(nearest) / wanted - 1
    if abs(off) > FLOPS_AGREE:
        raise file.refused(
            f"{here}.arms",
            f"'{arm.title}' with {nearest.model.num_layers} layers comes to {off:+.0%} of the "
            f"compute of '{arm.layers_for_flops_of}'; no number of layers comes nearer",
        )
    return nearest


def _context(config: RunConfig, part: PartSettings) -> int | None:
    """Tokens of a window; None if neither the config nor the data decides."""
    data, _ = config.for_training()
    return data.context or preparation_of(part).context


def _flops(config: RunConfig, part: PartSettings) -> float:
    context = _context(config, part)
    return recipe_of(config).expected_flops_per_token(CONTEXT if context is None else context)


def _measures(variant: Variant, model: ModelConfig) -> tuple[str, ...]:
    """The measures of the part that say something about a model."""
    if variant.is_tuning:
        return (TUNING_MEASURE,)
    schedule = model.occurrences()
    return tuple(name for name in variant.part.measure if MEASURES[name].applies_to(schedule))


def _parameters(config: ModelConfig) -> int:
    model = meta_model(config, form="torch")
    return sum(parameter.numel() for parameter in model.parameters())
