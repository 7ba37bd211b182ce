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
from mixerloop.files import is_there
from mixerloop.interop.parents import open_parent
from mixerloop.kinds import MOST_LAYERS
from mixerloop.measures import MEASURES
from mixerloop.model.accounting import account_model, training_flops_per_token
from mixerloop.model.initialization import meta_model
from mixerloop.notation import notation
from mixerloop.ops.precision import choose_compute_dtype
from mixerloop.parent_record import ParentRecord
from mixerloop.results import encode, result_provenance
from mixerloop.schedule import BLOCK
from mixerloop.studies.cell import Cell
from mixerloop.studies.matching import FLOPS_AGREE, differences
from mixerloop.studies.plan_checks import check_plan
from mixerloop.studies.reading import StudyPlan, read_plan
from mixerloop.studies.study import PARENT, ArmSettings, PartSettings, StudyFile, preparation_of
from mixerloop.studies.table import Row, Table
from mixerloop.studies.variants import (
    TUNING_MEASURE,
    Variant,
    sweeps_of,
    tuned_value,
    variants_of,
)
from mixerloop.study_folder import DATA, PLAN, PREFILL
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

    def check_unchanged(self) -> None:
        """Reject a folder whose data or measurements were made under another plan."""
        if not is_there(self.folder / PLAN):
            return
        before, now = read_plan(self.folder), self.summary()
        parts = Table(before.rows).by("part")
        for part in Table(now.rows).by("part").values():
            old_part, row = parts.get(part.first.part, part), part.first
            old_row = old_part.first
            changes: list[tuple[str, object, object]] = [
                ("data", old_row.data, row.data),
                ("transport", encode(old_row.transport), encode(row.transport)),
                ("from", _weights_text(old_row.parent), _weights_text(row.parent)),
            ]
            changes += [
                (f"{measure} in", old_row.measured_in(measure), row.measured_in(measure))
                for measure in {name for one in old_part for name in one.measure}
            ]
            for setting, old, new in changes:
                if old != new:
                    raise ValueError(
                        f"{self.folder}: {row.part} was made with {setting} {old}, and the study "
                        f"now says {new}; choose another folder"
                    )
        if before.prefill != now.prefill and is_there(self.folder / PREFILL):
            raise ValueError(
                f"{self.folder / PREFILL}: was measured with {encode(before.prefill)}, and the "
                "study now says other; remove it or choose another folder"
            )

    def summary(self) -> StudyPlan:
        """The content of plan.json."""
        study = self.file.study
        return StudyPlan(
            name=self.file.path.stem,
            title=study.title,
            about=study.about.strip(),
            rows=tuple(row for variant in self.variants for row in self._rows(variant)),
            prefill=study.prefill,
            provenance=result_provenance(),
        )

    def _rows(self, variant: Variant) -> Iterator[Row]:
        part, cells = variant.part, self.of(variant.name)
        shared = [cell for cell in cells if not cell.names_dtype] or cells
        models = {cell.arm: cell for cell in cells}
        differs = differences({title: cell.config for title, cell in models.items()})
        tunes = {
            sweep.title(value): (sweep, value)
            for sweep in sweeps_of(variant)
            for value in sweep.values
            if variant.is_tuning
        }
        tuned = {} if variant.is_tuning else _tuned(variant, self.folder)
        facts = {
            title: {
                **model_facts(cell.config.model),
                "parent": None if cell.parent is None else cell.parent.record(cell.config.model),
            }
            for title, cell in models.items()
        }
        for cell in cells:
            sweep, value = tunes.get(cell.arm, (None, 0.0))
            yield Row(
                number=cell.number,
                run=cell.name,
                part=variant.name,
                family=part.name,
                size=None if variant.size is None else variant.size.name,
                tokens=variant.tokens,
                is_tuning=variant.is_tuning,
                arm=cell.arm,
                seed=cell.seed,
                **facts[cell.arm],
                deepened=cell.arm_settings.layers_for_flops_of,
                parameters=cell.parameters,
                flops_per_token=cell.flops_per_token,
                match=part.match,
                data=" ".join(part.prepare),
                compute_dtype=shared[0].config.for_training()[1].compute_dtype,
                tuned=tuned.get(cell.arm, {}) if sweep is None else {sweep.key: value},
                tunes=None if sweep is None else sweep.arm.title,
                amounts=cell.amounts(),
                differs=differs[cell.arm],
                measure=cell.measure,
                measure_in={measure: part.measured_in(measure) for measure in MEASURES},
                transport=part.transport,
                documents=variant.documents,
            )


def model_facts(model: ModelConfig) -> dict[str, Any]:
    """The columns of a row that say what its model is."""
    return {
        "schedule": notation(model.occurrences()),
        "num_layers": model.num_layers,
        "d_model": model.d_model,
        "vocab_size": model.vocab_size,
        "macs": {**account_model(model).projection_macs()},
        "layer_parameters": tuple(_layer_parameters(model)),
    }


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


def _weights_text(parent: ParentRecord | None) -> str:
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
        fresh_names(config.model, parent)


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
    planned = read_plan(folder).rows if is_there(folder / PLAN) else ()
    before = [row.compute_dtype for row in planned if row.part == variant.name]
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
    model = meta_model(config.model, form="torch")
    context = _context(config, part)
    if context is None:
        return training_flops_per_token(model)
    return training_flops_per_token(model, context=context)


def _measures(variant: Variant, model: ModelConfig) -> tuple[str, ...]:
    """The measures of the part that say something about a model."""
    if variant.is_tuning:
        return (TUNING_MEASURE,)
    schedule = model.occurrences()
    return tuple(name for name in variant.part.measure if MEASURES[name].applies_to(schedule))


def _parameters(config: ModelConfig) -> int:
    model = meta_model(config, form="torch")
    return sum(parameter.numel() for parameter in model.parameters())
