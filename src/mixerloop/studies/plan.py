"""Turn a study file into rows: each is one model with one seed, to be trained and measured."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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
from mixerloop.model.accounting import CONTEXT, account_model
from mixerloop.model.initialization import meta_model
from mixerloop.notation import notation
from mixerloop.ops.precision import choose_compute_dtype
from mixerloop.parent_record import ParentRecord
from mixerloop.results import encode, result_provenance
from mixerloop.schedule import BLOCK
from mixerloop.studies.plan_checks import FLOPS_AGREE, amounts, check_plan, differences
from mixerloop.studies.reading import StudyPlan, read_plan
from mixerloop.studies.study import (
    PARENT,
    ArmSettings,
    PartSettings,
    SizeSettings,
    StudyFile,
    preparation_of,
)
from mixerloop.studies.table import Row, Table
from mixerloop.studies.variants import (
    TUNING_MEASURE,
    arms_of,
    parts_of,
    run_name,
    sweeps_of,
    tuned_values,
)
from mixerloop.study_folder import DATA, PLAN, PREFILL
from mixerloop.training.opened import recipe_of
from mixerloop.training.parent import Parent, fresh_names


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The rows of a study that is to be run, and the study's folder."""

    file: StudyFile
    folder: Path
    rows: tuple[Row, ...]
    parent: Path | None = None
    """The run that stands for {parent} in the study file."""

    def run(self, row: Row) -> Path:
        """The folder of a row's run."""
        return self.folder / row.run

    def data(self, part: str) -> Path:
        """The folder of the prepared data of a part of the study file."""
        return self.folder / DATA / part

    def check_unchanged(self) -> None:
        """Reject a folder whose data or measurements were made under another plan."""
        if not is_there(self.folder / PLAN):
            return
        before, prefill = read_plan(self.folder), self.file.study.prefill
        parts = Table(before.rows).by("part")
        for part in Table(self.rows).by("part").values():
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
        if before.prefill != prefill and is_there(self.folder / PREFILL):
            raise ValueError(
                f"{self.folder / PREFILL}: was measured with {encode(before.prefill)}, and the "
                "study now says other; remove it or choose another folder"
            )

    def write(self) -> None:
        """Write plan.json."""
        study = self.file.study
        StudyPlan(
            name=self.file.path.stem,
            title=study.title,
            about=study.about.strip(),
            rows=self.rows,
            prefill=study.prefill,
            provenance=result_provenance(),
        ).write(self.folder)


def model_facts(config: ModelConfig) -> dict[str, Any]:
    """The columns of a row that say what its model is."""
    model = meta_model(config, form="torch")
    return {
        "schedule": notation(config.occurrences()),
        "num_layers": config.num_layers,
        "d_model": config.d_model,
        "vocab_size": config.vocab_size,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "macs": {**account_model(config).projection_macs()},
        "layer_parameters": tuple(
            {
                sublayer: sum(
                    parameter.numel()
                    for name, parameter in layer.named_parameters()
                    if name.startswith(sublayer)  # its norm too
                )
                for sublayer in BLOCK
            }
            for layer in model.layers
        ),
    }


def _weights_text(parent: ParentRecord | None) -> str:
    return "fresh weights" if parent is None else f"the weights {parent.sha256[:10]}"


def make_plan(file: StudyFile, folder: Path, *, parent: Path | None = None) -> Plan:
    """Turn a study file into rows; rejects every mistake that shows before training.

    The tuned keys have the values that the runs in `folder` have chosen by now. `parent` is the run
    that stands for {parent} in the file.
    """
    if parent is not None and all(part.parent != PARENT for part in file.study.parts):
        raise ValueError(f'{file.path}: no part has from = "{PARENT}", so parent has no meaning')
    rows: list[Row] = []
    for index, part in enumerate(file.study.parts):
        opened = _opened_parent(file, index, parent)
        for empty, size in parts_of(part):
            rows += _rows(file, index, empty, size, folder, opened)
    rows = [replace(row, number=number) for number, row in enumerate(rows, start=1)]
    check_plan(file, rows)
    return Plan(file=file, folder=folder, rows=tuple(rows), parent=parent)


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


def _rows(
    file: StudyFile,
    index: int,
    empty: Row,
    size: SizeSettings | None,
    folder: Path,
    parent: Parent | None,
) -> Iterator[Row]:
    """The rows of a part of the plan, from the columns that all of them share."""
    part, here = file.study.parts[index], f"parts[{index}]"
    models: dict[str, Row] = {}
    own_dtype: set[str] = set()
    seeds: dict[str, tuple[int, ...]] = {}

    def add(arm: ArmSettings, title: str, config: RunConfig, **facts: Any) -> None:
        if title in models:
            raise file.refused(f"{here}.arms", f"two models of {empty.part} are called '{title}'")
        with file.at(f"{here}.arms", f"'{title}': "):
            models[title] = _with_model(empty, part, arm, title, config, parent, **facts)
        seeds[title] = arm.seeds or part.seeds
        if arm.train.get("compute_dtype", "auto") != "auto":
            own_dtype.add(title)

    if empty.is_tuning:
        sweeps = sweeps_of(part, empty.size)
        configs_at: dict[float, dict[str, RunConfig]] = {}
        for value in {value for sweep in sweeps for value in sweep.values}:
            all_with = {sweep.arm.title: {sweep.key: value} for sweep in sweeps}
            configs_at[value] = _configs(file, here, empty, size, folder, all_with, parent)
        for sweep in sweeps:
            for value in sweep.values:
                title, tuned = sweep.title(value), {sweep.key: value}
                config = configs_at[value][sweep.arm.title]
                add(sweep.arm, title, config, tuned=tuned, tunes=sweep.arm.title)
                seeds[title] = (part.tune_seed,)
    else:
        tuned = tuned_values(part, empty.size, folder)
        by_arm = _configs(file, here, empty, size, folder, tuned, parent)
        for arm in arms_of(part, empty.size):
            add(arm, arm.title, by_arm[arm.title], tuned=tuned.get(arm.title, {}))
    differs = differences({title: row.with_config() for title, row in models.items()})
    shared = next((title for title in models if title not in own_dtype), next(iter(models)))
    _, trained = models[shared].with_config().for_training()
    for turn in range(max(map(len, seeds.values()))):  # the first seed of every model comes first
        for title, row in models.items():
            if turn < len(seeds[title]):
                seed, config = seeds[title][turn], row.with_config()
                _, train = config.for_training()
                yield replace(
                    row,
                    seed=seed,
                    run=run_name(row.part, title, seed),
                    config=replace(config, train=replace(train, seed=seed)),
                    differs=differs[title],
                    compute_dtype=trained.compute_dtype,
                )


def _with_model(
    empty: Row,
    part: PartSettings,
    arm: ArmSettings,
    title: str,
    config: RunConfig,
    parent: Parent | None,
    **facts: Any,
) -> Row:
    """A row with the columns of its model, but without a seed."""
    context, flops = _context(config, part), _flops(config, part)
    return replace(
        empty,
        arm=title,
        **model_facts(config.model),
        deepened=arm.layers_for_flops_of,
        flops_per_token=flops,
        parent=None if parent is None else parent.record(meta_model(config.model)),
        rate=config.for_training()[1].peak_lr,
        amounts=amounts(config, context=context, flops_per_token=flops),
        measure=_measures(empty, part, config.model),
        context=context,
        config=config,
        **facts,
    )


def _configs(
    file: StudyFile,
    here: str,
    row: Row,
    size: SizeSettings | None,
    folder: Path,
    tuned: Mapping[str, Mapping[str, float]],
    parent: Parent | None,
) -> dict[str, RunConfig]:
    """The config of every model of a part of the plan, in the order of the study file."""
    part = file.part(row.family)
    arms = arms_of(part, row.size)
    with file.at(f"{here}.config"):
        path = catalog.config_file(part.config, beside=file.path.parent)
    if not path.is_file():
        raise file.refused(f"{here}.config", f"{part.config}: there is no such config")
    found: dict[str, RunConfig] = {}
    for arm in sorted(arms, key=lambda arm: arm.layers_for_flops_of is not None):
        overrides = _overrides(part, row, size, arm, folder, tuned.get(arm.title, {}))
        try:
            config = configs.load(path, overrides, base=None if parent is None else parent.model)
            config.for_training()
        except ValueError as error:
            raise file.refused(_place(here, part, error), error) from None
        if arm.layers_for_flops_of is not None:
            if arm.layers_for_flops_of not in found:
                reason = f"'{arm.layers_for_flops_of}' has no size {row.part}"
                raise file.refused(f"{here}.arms", reason)
            config = _deepened(file, here, part, arm, config, found[arm.layers_for_flops_of])
        if parent is not None:
            with file.at(f"{here}.from", f"'{arm.title}': "):
                fresh_names(meta_model(config.model), parent)  # raises if it does not fit
        found[arm.title] = config
    return {arm.title: _in_one_dtype(found[arm.title], row, folder) for arm in arms}


def _overrides(
    part: PartSettings,
    row: Row,
    size: SizeSettings | None,
    arm: ArmSettings,
    folder: Path,
    tuned: Mapping[str, float],
) -> configs.Tables:
    """The keys that replace those of the config: the part's, the size's, the arm's, the tuned."""
    model: dict[str, Any] = {**part.model, **({} if size is None else size.model), **arm.model}
    train: dict[str, Any] = {**part.train, **({} if size is None else size.train), **arm.train}
    tables = {
        "model": {**model, "schedule": arm.schedule},
        "data": {"path": str(folder / DATA / part.name), **part.data, **arm.data},
        "train": train,
    }
    if row.tokens is not None:
        kept = {key: value for key, value in train.items() if key not in BUDGETS}
        tables["train"] = {**kept, "tokens": row.tokens}
    for key, value in tuned.items():
        section, _, name = key.partition(".")
        tables[section] = {**tables[section], name: value}
    return tables


def _in_one_dtype(config: RunConfig, row: Row, folder: Path) -> RunConfig:
    """Replace the compute type `auto` by that of an earlier plan, or else of this machine's CPU.

    All cells compute in one type, wherever they run. In a part for GPUs each cell resolves `auto`.
    """
    _, train = config.for_training()
    if train.compute_dtype != "auto" or row.gpus:
        return config
    planned = read_plan(folder).rows if is_there(folder / PLAN) else ()
    before = [earlier.compute_dtype for earlier in planned if earlier.part == row.part]
    dtype = before[0] if before else choose_compute_dtype("auto", "cpu")
    return replace(config, train=replace(train, compute_dtype=dtype))


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
            model = replace(config.model, num_layers=periods * period)
        return replace(config, model=model)

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


def _measures(row: Row, part: PartSettings, model: ModelConfig) -> tuple[str, ...]:
    """The measures of the part that say something about a model."""
    if row.is_tuning:
        return (TUNING_MEASURE,)
    schedule = model.occurrences()
    return tuple(name for name in part.measure if MEASURES[name].applies_to(schedule))
