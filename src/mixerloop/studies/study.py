"""A study file: which models are compared, over which seeds, how they are matched and measured."""

import contextlib
import dataclasses
import re
import tomllib
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixerloop.config import BUDGETS, PRESETS, ComputeDtype, check_seed
from mixerloop.data.preparation import Preparation, parse_preparation
from mixerloop.files import read_file
from mixerloop.kinds import LARGEST_SIZE
from mixerloop.measures import MEASURES, measure_named
from mixerloop.parsing import from_dict, one_line, suggest
from mixerloop.study_folder import (
    CELLS,
    DATA,
    FIGURES,
    MEASURED_IN,
    Match,
    PrefillSettings,
    TransportSettings,
)

CORPUS, HELD_OUT, TOKENIZER = "{corpus}", "{held_out}", "{tokenizer}"
"""In `prepare`: the files a user names with --corpus, --held-out and --tokenizer."""
PARENT = "{parent}"
"""In `from`: the run a user names with --parent."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
ARM_NAME = re.compile(r"[A-Za-z0-9(][^/\\\x00-\x1f<>]*")
RESERVED = (DATA, CELLS, FIGURES)
"""Folders of a study that are not parts."""


@dataclass(frozen=True, kw_only=True)
class ArmSettings:
    """One model of a comparison."""

    schedule: str
    """A named loop or notation."""
    name: str | None = None
    """The model's name in folders and tables; by default its schedule."""
    layers_for_flops_of: str | None = None
    """Another model; the number of layers is chosen so that both cost about the same per token."""
    seeds: tuple[int, ...] = ()
    """Seeds of this model, in place of the part's."""
    sizes: tuple[str, ...] = ()
    """The part's sizes that this model has; by default all."""
    tune: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    """Values of this model's own sweep, in place of the part's."""
    model: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keys that override the part's [model]; `data` and `train` override their sections."""
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    train: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def title(self) -> str:
        """The model's name in folders and tables."""
        return self.schedule if self.name is None else self.name


@dataclass(frozen=True, kw_only=True)
class SizeSettings:
    """A size in which all models of a part are trained."""

    name: str
    model: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keys that override the part's [model]; `train` overrides its section."""
    train: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PartSettings:
    """Models that differ in their schedule, and in the keys that an arm overrides."""

    name: str
    config: str
    """The run config that all models start from: a name of the catalog, or a path relative to the
    study file."""
    prepare: tuple[str, ...]
    """The arguments of `mixerloop data prepare` that make the data."""
    arms: tuple[ArmSettings, ...]
    seeds: tuple[int, ...]
    parent: str | None = dataclasses.field(default=None, metadata={"key": "from"})
    """The run whose weights all models start from: {parent}, or a path relative to the study file;
    by default they start from fresh weights."""
    match: Match = "parameters+tokens"
    sizes: tuple[SizeSettings, ...] = ()
    """Every model is trained in each size; by default the config's size is the only one."""
    tokens: tuple[float, ...] = ()
    """Training budgets, each a separate run of every model; by default the config's budget."""
    tune: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    """One config key and its values. Each model is first trained with every value; the best value
    by the NLL of the documents for tuning is used for all its runs."""
    tune_tokens: float | None = None
    """Budget of the runs that tune; by default the smallest of `tokens`."""
    tune_seed: int = 0
    """Seed of the runs that tune; none of `seeds`."""
    measure: tuple[str, ...] = ("nll",)
    """Registered measures, taken of every trained model."""
    measure_in: dict[str, ComputeDtype] = dataclasses.field(default_factory=dict)
    """The type of the projections in each measurement; by default float32."""
    transport: TransportSettings = dataclasses.field(default_factory=TransportSettings)
    cpus: int = 1
    """CPUs that a cluster reserves for each cell."""
    gpus: int = 0
    model: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keys that override the config's [model]; `data` and `train` override their sections."""
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    train: dict[str, Any] = dataclasses.field(default_factory=dict)

    def measured_in(self, measure: str) -> ComputeDtype:
        """The type of the projections in a measurement."""
        return self.measure_in.get(measure, MEASURED_IN)


@dataclass(frozen=True, kw_only=True)
class Study:
    """The content of a study file."""

    title: str
    parts: tuple[PartSettings, ...]
    prefill: PrefillSettings | None = None
    about: str = ""
    """A short description for the report."""


@dataclass(frozen=True)
class StudyFile:
    """A study and the text it was read from, so that an error can name the line."""

    path: Path
    text: str
    study: Study

    def refused(self, place: str, reason: object) -> ValueError:
        """An error that names the line of a place such as `parts[1].arms`."""
        return _refused(self.path, self.text, place, reason)

    def part(self, name: str) -> PartSettings:
        """The part of a name."""
        return next(part for part in self.study.parts if part.name == name)

    def place_of(self, name: str) -> str:
        """The place of a part, such as `parts[1]`."""
        return f"parts[{self.study.parts.index(self.part(name))}]"

    @contextlib.contextmanager
    def at(self, place: str, about: str = "") -> Iterator[None]:
        """Errors in the block name the line of a place; `about` begins the reason."""
        try:
            yield
        except ValueError as error:
            raise self.refused(place, f"{about}{error}") from None


def read_study(path: Path) -> StudyFile:
    """Read a study file and run the checks that need no other file."""
    content = read_file(path)
    try:
        text = content.decode()
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a study in TOML: {one_line(error)}") from None
    try:
        file = StudyFile(path, text, from_dict(Study, _with_whole_arms(tables)))
    except ValueError as error:
        raise _refused(path, text, str(error), error) from None
    _check(file)
    return file


def _with_whole_arms(tables: dict[str, Any]) -> dict[str, Any]:
    """Replace each arm that is only a schedule by a table with that schedule."""
    parts = tables.get("parts")
    if not isinstance(parts, list):
        return tables
    whole = []
    for part in parts:
        if isinstance(part, dict) and isinstance(part.get("arms"), list):
            arms = [{"schedule": arm} if isinstance(arm, str) else arm for arm in part["arms"]]
            part = part | {"arms": arms}
        whole.append(part)
    return tables | {"parts": whole}


def _check(file: StudyFile) -> None:
    if not file.study.parts:
        raise file.refused("parts", "a study needs a part or more")
    if file.study.prefill is not None:
        _check_prefill(file, file.study.prefill)
    names = [folder_key(part.name) for part in file.study.parts]
    for index, part in enumerate(file.study.parts):
        here = f"parts[{index}]"
        is_taken = names.count(names[index]) > 1 or names[index] in RESERVED
        if not NAME.fullmatch(part.name) or is_taken:
            raise file.refused(f"{here}.name", f"'{part.name}' cannot name a folder of its own")
        _check_grid(file, here, part)
        titles = [folder_key(arm.title) for arm in part.arms]
        if not titles:
            raise file.refused(f"{here}.arms", "a part needs a model or more")
        for title in (arm.title for arm in part.arms):
            if titles.count(folder_key(title)) > 1:
                raise file.refused(f"{here}.arms", f"two models are called '{title}'")
            if not ARM_NAME.fullmatch(title):
                raise file.refused(f"{here}.arms", f"'{title}' cannot name a folder; give a name")
        plain = [arm.title for arm in part.arms if arm.layers_for_flops_of is None]
        for arm in part.arms:
            target = arm.layers_for_flops_of
            if target is not None and target not in plain:
                raise file.refused(
                    f"{here}.arms", f"there is no other model '{target}' with layers of its own"
                )
        _check_seeds(file, here, part)
        if min(part.cpus, part.gpus + 1) < 1:
            raise file.refused(f"{here}.cpus", "a cell needs a processor")
        with file.at(f"{here}.prepare"):
            preparation_of(part)
        _check_measures(file, here, part)
        _check_overrides(file, here, part)


def folder_key(name: str) -> str:
    """A name as disks compare it that tell neither case nor the forms of a letter apart."""
    return unicodedata.normalize("NFC", name).casefold()


SET_BY_STUDY = (("model", "schedule"), ("data", "path"), ("data", "prepare"), ("train", "seed"))


def _check_overrides(file: StudyFile, here: str, part: PartSettings) -> None:
    """Reject keys that the study itself sets, which would be ignored."""
    for section, key in (*SET_BY_STUDY, *(("train", name) for name in BUDGETS)):
        reason = f"{section}.{key} is for the study to set"
        if f"{section}.{key}" in part.tune:
            raise file.refused(f"{here}.tune", reason)
        if key in BUDGETS and not part.tokens:
            continue
        if key in getattr(part, section):
            raise file.refused(f"{here}.{section}.{key}", reason)
        if any(key in getattr(arm, section) for arm in part.arms):
            raise file.refused(f"{here}.arms", reason)
        if any(key in getattr(size, section, ()) for size in part.sizes):
            raise file.refused(f"{here}.sizes", reason)


def _check_seeds(file: StudyFile, here: str, part: PartSettings) -> None:
    if not part.seeds:
        raise file.refused(f"{here}.seeds", "give one seed or more")
    of_arms = [(f"{here}.arms", arm.seeds) for arm in part.arms]
    for place, seeds in ((f"{here}.seeds", part.seeds), *of_arms):
        if len(set(seeds)) < len(seeds):
            raise file.refused(place, "give each seed once")
        with file.at(place):
            for seed in (*seeds, part.tune_seed):
                check_seed(seed)
        if part.tune and part.tune_seed in seeds:
            raise file.refused(place, f"seed {part.tune_seed} is that of tuning")


def _check_grid(file: StudyFile, here: str, part: PartSettings) -> None:
    """Reject sizes, budgets and sweeps that name nothing, or the same thing twice."""
    sizes = [size.name for size in part.sizes]
    for name in sizes:
        if not NAME.fullmatch(name) or [*map(folder_key, sizes)].count(folder_key(name)) > 1:
            raise file.refused(f"{here}.sizes", f"'{name}' cannot name a size of its own")
    for arm in part.arms:
        for name in arm.sizes:
            if name not in sizes:
                raise file.refused(f"{here}.arms", f"unknown size '{name}'; {suggest(name, sizes)}")
    for name in sizes:
        if not any(name in (arm.sizes or sizes) for arm in part.arms):
            raise file.refused(f"{here}.sizes", f"no arm has size {name}")
    budgets = [*part.tokens, *([] if part.tune_tokens is None else [part.tune_tokens])]
    if not all(0 < number <= 2**53 and number == int(number) for number in budgets):
        raise file.refused(f"{here}.tokens", "budgets are whole numbers of tokens")
    if len(set(part.tokens)) < len(part.tokens):
        raise file.refused(f"{here}.tokens", "a budget is named twice")
    for tune in (part.tune, *(arm.tune for arm in part.arms)):
        if len(tune) > 1:
            raise file.refused(f"{here}.tune", "one key at a time can be tuned")
        for key, values in tune.items():
            section = key.partition(".")[0]
            if section not in ("model", "train") or "." not in key:
                raise file.refused(f"{here}.tune", f"'{key}' is no key such as train.peak_lr")
            if len(values) < 2 or list(values) != sorted(set(values)):
                raise file.refused(f"{here}.tune", "give two values or more, in increasing order")
    if any(arm.tune.keys() - part.tune.keys() for arm in part.arms):
        raise file.refused(f"{here}.arms", "an arm tunes the key that its part tunes")
    if part.tune and "nll" not in part.measure:
        raise file.refused(f"{here}.measure", "tuning needs nll among the measures")
    if part.tune and part.tune_tokens is None and not part.tokens:
        raise file.refused(f"{here}.tune", "give tune_tokens, the budget of the runs that tune")


def preparation_of(part: PartSettings) -> Preparation:
    """The data of a part, with names such as {corpus} in place of the user's files."""
    return parse_preparation([word for word in part.prepare if word != HELD_OUT])


def _check_measures(file: StudyFile, here: str, part: PartSettings) -> None:
    with file.at(f"{here}.measure"):
        for name in part.measure:
            measure_named(name)
    for name in part.measure_in:
        if name not in MEASURES:
            place = f"{here}.measure_in"
            reason = f"{place}: unknown key {name}; {suggest(name, MEASURES)}"
            raise file.refused(reason, reason)
        if name not in part.measure:
            raise file.refused(f"{here}.measure_in", f"{name} is not among the measures")


def _check_prefill(file: StudyFile, prefill: PrefillSettings) -> None:
    for size in prefill.sizes:
        if size not in PRESETS:
            raise file.refused(
                "prefill.sizes", f"unknown preset '{size}'; {suggest(size, PRESETS)}"
            )
    numbers = (*prefill.batches, prefill.length, prefill.warmup, prefill.repeats)
    if not prefill.sizes or not prefill.batches or min(numbers) < 1:
        raise file.refused("prefill", "name sizes and batches; every number must be at least 1")
    if max(numbers) > LARGEST_SIZE:
        raise file.refused("prefill", f"every number must be at most {LARGEST_SIZE:,}")


def _refused(path: Path, text: str, place: str, reason: object) -> ValueError:
    number = line_of(text, place)
    where = f"{path}" if number is None else f"{path}, line {number}"
    return ValueError(f"{where}: {reason}")


def line_of(text: str, place: str) -> int | None:
    """The line of a key such as `parts[1].train.steps`, or of the nearest table around it.

    Text may follow the place, as in the messages of `parsing.from_dict`, which name an unknown key
    after its table.
    """
    wanted = re.match(r"[\w.\[\]]*", place)
    keys = re.findall(r"\w+", wanted.group() if wanted else "")
    if unknown := re.search(r"unknown key (\w+)", place):
        keys = [key for key in keys if key != "config"] + [unknown.group(1)]
    best: tuple[int, int] | None = None
    table: list[str] = []
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[(\[?)([\w.]+)\]", line):
            table = header.group(2).split(".")
            if header.group(1) and len(table) == 1:
                counts[table[0]] = counts.get(table[0], -1) + 1
            path = list(table)
        elif key := re.match(r"\s*(\w+)\s*=", line):
            path = [*table, key.group(1)]
        else:
            continue
        if path[0] in counts:
            path.insert(1, str(counts[path[0]]))
        depth = next(
            (i for i, (a, b) in enumerate(zip(path, keys, strict=False)) if a != b),
            min(len(path), len(keys)),
        )
        if depth and depth == len(path) and (best is None or depth > best[0]):
            best = (depth, number)
    return None if best is None else best[1]
