"""The config of a run: frozen dataclasses, read strictly from TOML."""

import dataclasses
import functools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import tomli_w

from mixerloop import catalog
from mixerloop.files import read_file
from mixerloop.kinds import (
    FIXED,
    KINDS,
    LARGEST_SIZE,
    MOST_LAYERS,
    GatedDeltaNetOptions,
    ObjectiveConfig,
    SwiGLUOptions,
    check_size,
    kind_of,
    pass_weights,
)
from mixerloop.notation import notation, resolve
from mixerloop.parsing import checked, from_dict, one_line, suggest
from mixerloop.schedule import Schedule, Unit, repeated_unit

Form = Literal["definition", "torch", "native", "fla"]
FormChoice = Literal["auto", "definition", "torch", "native", "fla"]
"""The form of a mixer's recurrence; `auto` is the fastest form that is available."""
ComputeDtype = Literal["float32", "bfloat16"]
"""Type of the projections; weights, decays, norms and sums stay float32."""
ComputeDtypeChoice = Literal["auto", "float32", "bfloat16"]
"""`auto` measures a product in both types and takes bfloat16 where it is clearly faster."""
InitRule = Literal["shared", "released"]
"""`shared`: one draw for every schedule. `released`: as in the authors' code, where the output
projection of the repeated sublayer starts smaller."""
Parallel = Literal["ddp", "fsdp"]
"""`ddp` averages gradients over ranks; `fsdp` also shards weights and optimizer state."""
DepthPer = Literal["batch", "sequence"]
"""Whether a batch has one depth, or each of its sequences draws its own."""
Documents = Literal["all", "tuning", "test"]
"""The held-out documents that an NLL is of: all, those that choose a setting, or the others."""
Device = Literal["auto", "cpu", "cuda"]
"""`auto` is CUDA where a CUDA device is available, else the CPU."""
NormPlacement = Literal["pre", "post", "sandwich", "after_add"]
"""The norms n of a sublayer f: `pre` x + f(n x), `post` x + n(f(x)), `sandwich` x + n(f(n x)),
`after_add` n(x + f(n x))."""
UNITS = get_args(Unit)
BUDGETS = ("steps", "tokens", "flops", "seconds")
WARMUPS = ("warmup_steps", "warmup")

Tables = dict[str, dict[str, Any]]
"""The sections of a config with their keys, as read from TOML."""

LARGEST_NUMBER = 1e30  # more operations than any run can spend
STACK_ROLES: dict[Literal["mixer", "ffn"], tuple[str, ...]] = {
    "mixer": ("gated_delta_net",),
    "ffn": ("swiglu",),
}
"""The roles of a layer's sublayers, and the default kinds of each role."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One physical stack of layers and the schedule that walks it.

    `options` holds the options of every kind of mixer and ffn in the stack, and of every pass rule
    in use. In TOML each is a table, such as `[model.gated_delta_net]`. An option may also stand in
    `[model]` itself, where only one kind of the stack has an option of that name. A pass rule may
    be given by its unit alone: `pass_residual = "stack"`.
    """

    num_layers: int
    """Physical layers, each a mixer and an ffn with their norms."""
    d_model: int
    """Width of the residual."""
    vocab_size: int
    """Rows of the embedding."""
    schedule: str = "mixer_loop"
    """Notation such as 6x(A4 F), or a named loop: mixer_loop, full_loop(2)."""
    mixer: tuple[str, ...] = ("gated_delta_net",)
    """The kind of mixer, or kinds that take turns: 3 gated_delta_net, 1 attention."""
    ffn: tuple[str, ...] = ("swiglu",)
    """The kind of ffn; several kinds take turns over the layers."""
    norm_eps: float = 1e-5
    """Added to the mean square in every RMSNorm."""
    norm_placement: NormPlacement = "pre"
    """Where a sublayer is normalised: pre, post, sandwich or after_add."""
    embedding_scale: float = 1.0
    """The embedding of a token is multiplied by this number."""
    tied_head: bool = True
    """Whether the head is the embedding, or a matrix of its own."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The options of each kind, by its name."""

    def __post_init__(self) -> None:
        """Reject sizes that no model can have, unknown kinds, and a schedule that does not fit."""
        check_size("model.num_layers", self.num_layers, most=MOST_LAYERS)
        for name in ("d_model", "vocab_size"):
            check_size(f"model.{name}", getattr(self, name))
        if not 0 < self.norm_eps < math.inf:
            raise ValueError(f"model.norm_eps must be above 0, got {self.norm_eps}")
        if not 0 < self.embedding_scale < math.inf:
            raise ValueError(f"model.embedding_scale must be above 0, got {self.embedding_scale}")
        for role in STACK_ROLES:
            if not isinstance(getattr(self, role), tuple):
                raise ValueError(f"model.{role} must be a tuple of kinds")
            num_kinds = len(getattr(self, role))
            if num_kinds == 0 or self.num_layers % num_kinds:
                raise ValueError(
                    f"model.{role}: {num_kinds} kinds cannot take turns over "
                    f"{self.num_layers} layers"
                )
        stack = self._stack_kinds()
        without = {name: kind_options(name, {}) for name in stack if name not in self.options}
        object.__setattr__(self, "options", {**without, **self.options})
        for name in self.options:
            if name not in KINDS:
                raise ValueError(f"model.{name}: unknown kind; {suggest(name, KINDS)}")
            if name not in stack and KINDS[name].role != "pass rule":
                raise ValueError(f"model.{name}: no layer is of this kind")
        self.occurrences()
        self.pass_rules()

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "ModelConfig":
        """Read the section `[model]` of a config."""
        for key in dataclasses.fields(cls):
            if key.default is key.default_factory is dataclasses.MISSING and key.name not in table:
                raise ValueError(f"model.{key.name} is missing")
        keys, tables = _keys_and_tables(table)
        stack = _stack_of(table)
        for name, given in tables.items():
            if name in KINDS and name not in stack and KINDS[name].role != "pass rule":
                unused = "".join(f", so {name}.{key} has no meaning" for key in list(given)[:1])
                raise ValueError(f"model.{name}: no layer is of this kind{unused}")
        options = {name: kind_options(name, given) for name, given in tables.items()}
        return from_dict(cls, {**keys, "options": options}, "model.")

    def table(self) -> dict[str, Any]:
        """The section `[model]` with every key and option, defaults included."""
        keys: dict[str, Any] = {key: getattr(self, key) for key in MODEL_KEYS}
        for role in STACK_ROLES:
            keys[role] = keys[role][0] if len(keys[role]) == 1 else list(keys[role])
        return keys | {name: dataclasses.asdict(given) for name, given in self.options.items()}

    def changed(self, **keys: Any) -> "ModelConfig":
        """A config with some keys of its table changed: `preset("nano").changed(d_ffn=512)`.

        The options of a kind that leaves the stack are dropped.
        """
        return ModelConfig.from_table(override(self.table(), keys))

    def layer_kinds(self) -> list[tuple[str, str]]:
        """The kinds of mixer and ffn of each layer."""
        return [
            (self.mixer[layer % len(self.mixer)], self.ffn[layer % len(self.ffn)])
            for layer in range(self.num_layers)
        ]

    def occurrences(self) -> Schedule:
        """The schedule as occurrences, from its notation or its name."""
        try:
            return resolve(self.schedule, self.num_layers)
        except ValueError as error:
            raise ValueError(f"model.{error}") from None

    def pass_rules(self) -> dict[str, Any]:
        """The options of each pass rule, with the unit that a pass repeats.

        A rule with the unit `released` gets the unit that the schedule repeats. It is left out
        where the schedule repeats nothing.
        """
        rules = {}
        for name, given in self.options.items():
            if KINDS[name].role != "pass rule":
                continue
            known = (*UNITS, "released")
            if given.unit not in known:
                raise ValueError(
                    f"model.{name}.unit '{given.unit}' is unknown; {suggest(given.unit, known)}"
                )
            unit = self._repeated_unit(name) if given.unit == "released" else given.unit
            if unit is not None:
                rules[name] = replace(given, unit=unit)
        return rules

    def _repeated_unit(self, rule: str) -> Unit | None:
        try:
            return repeated_unit(self.occurrences())
        except ValueError as error:
            raise ValueError(
                f"model.{rule} = 'released': {error}; name a unit: {', '.join(UNITS)}"
            ) from None

    def _stack_kinds(self) -> list[str]:
        names = {kind_of(name, role).name for role in STACK_ROLES for name in getattr(self, role)}
        return sorted(names)


MODEL_KEYS = tuple(key.name for key in dataclasses.fields(ModelConfig) if key.name != "options")
"""The keys of `[model]` itself, without the options of kinds."""


def kind_options(name: str, given: Mapping[str, Any]) -> Any:
    """The options of a kind, read strictly from its table."""
    try:
        return from_dict(KINDS[name].options, dict(given), f"model.{name}.")
    except ValueError as error:
        known = str(error).startswith("model.")
        raise ValueError(str(error) if known else f"model.{name}.{error}") from None


def override(table: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """A model's table with some keys changed; options of kinds that leave the stack are dropped."""
    plain, tables = _keys_and_tables(table)
    roles = {role: value for role, value in {**plain, **keys}.items() if role in STACK_ROLES}
    stack = _stack_of(roles)
    tables = {
        name: given
        for name, given in tables.items()
        if name in stack or KINDS[name].role == "pass rule"
    }
    changed, changed_tables = _keys_and_tables({**roles, **keys}, also=tuple(tables))
    for name, given in changed_tables.items():
        tables[name] = {**tables.get(name, {}), **given}
    off = [name for name in keys if name in KINDS and keys[name] == "none"]
    return {**plain, **changed, **{name: tables[name] for name in tables if name not in off}}


def _stack_of(table: Mapping[str, Any]) -> list[str]:
    """The kinds of mixer and ffn that a table names, without repetition."""
    names: list[str] = []
    for role, default in STACK_ROLES.items():
        try:
            names += [
                kind_of(name, role).name for name in _kinds_in(role, table.get(role, default))
            ]
        except ValueError as error:
            known = str(error).startswith("model.")
            raise ValueError(str(error) if known else f"model.{role}: {error}") from None
    return list(dict.fromkeys(names))


def _kinds_in(role: str, given: Any) -> list[str]:
    """The kinds of a stack in the order in which layers take them: "3 a, 1 b", or a list."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(one, str) for one in texts):
        raise ValueError(f"model.{role} = {given!r}: not the name of a kind, nor a list of them")
    kinds: list[str] = []
    for part in (part for text in texts for part in text.split(",")):
        count, _, name = part.strip().rpartition(" ")
        if count and not (count.strip().isdecimal() and 1 <= int(count) <= MOST_LAYERS):
            raise ValueError(
                f"model.{role}: '{part.strip()}' is not a kind, nor a number of layers and a kind"
            )
        kinds += [name] * (int(count) if count else 1)
    if not kinds:
        raise ValueError(f"model.{role}: names no kind")
    return kinds


def option_names(kind: str) -> list[str]:
    """The names of a kind's options."""
    return [option.name for option in dataclasses.fields(KINDS[kind].options)]


def _keys_and_tables(
    table: Mapping[str, Any], *, also: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The keys of `[model]`, and the table of each kind with the options that stand outside it.

    `also` names kinds, besides those of the stack, whose options may stand outside their table.
    """
    keys: dict[str, Any] = {}
    tables: dict[str, dict[str, Any]] = {name: {} for name in (*_stack_of(table), *also)}
    loose: dict[str, Any] = {}
    for key, value in table.items():
        if key in STACK_ROLES:
            keys[key] = _kinds_in(key, value)
        elif key in MODEL_KEYS:
            keys[key] = value
        elif key in KINDS and isinstance(value, dict):
            tables[key] = dict(value)
        elif key in KINDS and KINDS[key].role == "pass rule":
            if value != "none":
                tables[key] = {"unit": value}
        elif key in KINDS:
            raise ValueError(f"model.{key} must be a table, got {value!r}")
        else:
            loose[key] = value
    for key, value in loose.items():
        owners = [name for name in tables if key in option_names(name)]
        if len(owners) > 1:
            places = " or ".join(f"model.{owner}.{key}" for owner in owners)
            raise ValueError(f"model.{key} is an option of several kinds: give {places}")
        if not owners:
            options = [option for name in tables for option in option_names(name)]
            raise ValueError(f"model: unknown key {key}; {suggest(key, [*MODEL_KEYS, *options])}")
        if key in tables[owners[0]]:
            raise ValueError(f"model.{key} is given twice: also as model.{owners[0]}.{key}")
        tables[owners[0]][key] = value
    return keys, tables


def check_fits(what: object, num_ids: int, vocab_size: int) -> None:
    """Reject token ids the model has no embedding for."""
    if num_ids > vocab_size:
        raise ValueError(f"{what}: {num_ids:,} token ids do not fit the model's {vocab_size:,}")


def _sizes(
    *, num_layers: int, d_model: int, num_heads: int, d_head: int, d_ffn: int, vocab_size: int
) -> ModelConfig:
    options = {
        "gated_delta_net": GatedDeltaNetOptions(num_heads=num_heads, d_head=d_head),
        "swiglu": SwiGLUOptions(d_ffn=d_ffn),
    }
    return ModelConfig(
        num_layers=num_layers, d_model=d_model, vocab_size=vocab_size, options=options
    )


PRESETS = {
    "nano": _sizes(num_layers=4, d_model=128, num_heads=4, d_head=32, d_ffn=352, vocab_size=4096),
    "15m": _sizes(num_layers=6, d_model=288, num_heads=4, d_head=72, d_ffn=768, vocab_size=32_000),
    "42m": _sizes(num_layers=8, d_model=512, num_heads=8, d_head=64, d_ffn=1376, vocab_size=32_000),
    "110m": _sizes(
        num_layers=12, d_model=768, num_heads=12, d_head=64, d_ffn=2048, vocab_size=32_000
    ),
    "105m": _sizes(
        num_layers=24, d_model=512, num_heads=16, d_head=32, d_ffn=1536, vocab_size=32_000
    ),
    "328m": _sizes(
        num_layers=20, d_model=1024, num_heads=32, d_head=32, d_ffn=3072, vocab_size=32_000
    ),
    "604m": _sizes(
        num_layers=32, d_model=1024, num_heads=32, d_head=32, d_ffn=3072, vocab_size=128_256
    ),
}
"""Sizes. 15m and 110m are the paper's. 105m, 328m and 604m are published in a later release. Of 42m
only 8 layers and 4 passes are published: the rest is inferred. nano is for a laptop."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The data a run is trained on."""

    path: str
    """A folder made by mixerloop data prepare."""
    prepare: tuple[str, ...] | None = None
    """Arguments of mixerloop data prepare that make the folder before training if it is missing."""
    context: int | None = None
    """Tokens of a window; a synthetic task such as hops has its own."""

    def __post_init__(self) -> None:
        """Reject a context below one token."""
        if self.context is not None and self.context < 1:
            raise ValueError(f"data.context must be at least 1, got {self.context}")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a run is trained; the defaults are the paper's recipe."""

    steps: int | None = None
    """Budget in updates. Give exactly one of steps, tokens, flops and seconds."""
    tokens: int | None = None
    """Budget in tokens trained on."""
    flops: float | None = None
    """Budget in floating point operations, forward and backward, loops counted."""
    seconds: float | None = None
    """Budget in seconds of training; the number of steps then depends on the machine."""
    seed: int = 1337
    """Random seed of the weights, the order of data and all other draws."""
    init: InitRule = "shared"
    """shared: one draw for every schedule; released: as in the authors' code, where the output
    projection of the repeated sublayer starts smaller."""
    global_batch: int = 512
    """Windows of one update, over all ranks."""
    micro_batch: int | None = None
    """Windows of one forward and backward on one rank; the rank's whole share by default."""
    peak_lr: float = 5e-4
    """Learning rate after the warm-up; a cosine takes it to zero."""
    embedding_lr: float | None = None
    """Learning rate of the embedding and the head after the warm-up; by default peak_lr."""
    warmup_steps: int = 1000
    """Updates until the peak; cut to half of a budget that is too short for them."""
    warmup: float | None = None
    """Share of the budget until the peak, in place of warmup_steps."""
    weight_decay: float = 0.1
    """Decay of matrices, filters and the embedding."""
    clip_norm: float = 1.0
    """Largest norm of the gradient; a larger gradient is scaled down to it."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """What a step minimises."""
    depth: str | tuple[tuple[float, str], ...] = FIXED
    """Passes that a step trains: fixed, uniform(1, 4), geometric(0.3, 4), poisson(4), or a list of
    weights and schedules."""
    depth_per: DepthPer = "batch"
    """Whether all sequences of a batch have one depth, or each draws its own."""
    backprop: int | None = None
    """Gradients flow through this number of last passes of the stack; through all by default."""
    schedule_at: tuple[tuple[float, str], ...] = ()
    """Schedules that are trained in turn, each from a share of the budget: 0 "6x(A F)" 0.7
    "6x(A4 F)". The last is the model's schedule."""
    freeze: tuple[str, ...] = ()
    """Parameters that keep their values, as patterns of their names: layers.0.*"""
    compute_dtype: ComputeDtypeChoice = "auto"
    """Type of the projections; weights, decays, norms and sums stay float32. auto is settled when
    a run begins."""
    form: FormChoice = "auto"
    """Form of the mixer's recurrence."""
    recompute: bool = False
    """Store only the input of each occurrence and compute the rest again in the backward."""
    compile: bool = False
    """Compile the layers with torch.compile."""
    device: Device = "auto"
    """Device to train on."""
    parallel: Parallel = "ddp"
    """ddp: ranks average gradients; fsdp: ranks also shard weights and optimizer state."""
    evaluate_every: int | None = None
    """Steps between measurements of the validation NLL; the last step is always measured."""
    evaluate_windows: int = 256
    """Held-out windows that a measurement reads; all windows if there are fewer."""
    checkpoint_every: int = 1000
    """Steps between checkpoints; the last step always has a checkpoint."""
    keep_last: int = 2
    """Number of newest checkpoints to keep."""
    keep_every: int | None = None
    """Also keep checkpoints whose step is a multiple of this number."""
    tensorboard: bool = True
    """Write event files for TensorBoard."""
    wandb: str | None = None
    """Report to this project at Weights & Biases."""

    def __post_init__(self) -> None:
        """Reject settings that no run can be trained with."""
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"{' and '.join(given)} are given" if given else "none is"
            raise ValueError(f"train: give one of {', '.join(BUDGETS)}; {found}")
        check_seed(self.seed)
        for name, value in vars(self).items():
            if name != "seed" and isinstance(value, int | float) and value > LARGEST_NUMBER:
                raise ValueError(f"train.{name} must be at most {LARGEST_NUMBER:g}")
        embedding = () if self.embedding_lr is None else ("embedding_lr",)
        for name in (*given, "peak_lr", "clip_norm", *embedding):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"train.{name} must be above 0, got {getattr(self, name)}")
        if self.global_batch > LARGEST_SIZE:
            raise ValueError(
                f"train.global_batch must be at most {LARGEST_SIZE:,}, got {self.global_batch:,}"
            )
        for name, least in (("weight_decay", 0.0), ("warmup_steps", 0)):
            if not least <= getattr(self, name) < math.inf:
                raise ValueError(f"train.{name} must be 0 or more, got {getattr(self, name)}")
        for name in (
            *("global_batch", "micro_batch", "evaluate_every", "evaluate_windows"),
            *("checkpoint_every", "keep_last", "keep_every", "backprop"),
        ):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"train.{name} must be at least 1, got {value}")
        if self.warmup is not None and not 0 <= self.warmup <= 1:
            raise ValueError(f"train.warmup must be a share from 0 to 1, got {self.warmup}")
        if self.warmup is not None and self.seconds is not None:
            raise ValueError(
                "train.warmup: the updates of a budget in seconds are not known; give warmup_steps"
            )
        self._check_depth()

    def _check_depth(self) -> None:
        """Reject depths that have no meaning; whether they fit the schedule shows in training."""
        if isinstance(self.depth, str) and self.depth != FIXED:
            try:
                pass_weights(self.depth)
            except ValueError as error:
                raise ValueError(f"train.depth: {error}") from None
        elif not isinstance(self.depth, str):
            weights = [weight for weight, _ in self.depth]
            if not weights or not all(0 < weight < math.inf for weight in weights):
                raise ValueError(f"train.depth: weights must be above 0, got {weights}")
        if self.depth_per == "sequence" and self.depth == FIXED:
            raise ValueError("train.depth_per = sequence needs a train.depth that is drawn")
        shares = [share for share, _ in self.schedule_at]
        if self.schedule_at and self.depth != FIXED:
            raise ValueError("train.depth and train.schedule_at both choose schedules; give one")
        if shares and (shares[0] != 0 or sorted(set(shares)) != shares or not 0 <= shares[-1] < 1):
            raise ValueError(
                f"train.schedule_at: shares of the budget must grow from 0 to below 1, got {shares}"
            )

    def table(self) -> dict[str, Any]:
        """The section `[train]` with every key."""
        keys = {key.name: getattr(self, key.name) for key in dataclasses.fields(self)}
        if self.warmup is not None:
            del keys["warmup_steps"]
        return keys | {"objective": self.objective.table()}

    @property
    def product_dtype(self) -> ComputeDtype:
        """`compute_dtype` of a run that has begun, in which `auto` is settled."""
        assert self.compute_dtype != "auto", "a run settles this when it begins"
        return self.compute_dtype


MAY_CHANGE = {
    *(
        "data.path",
        "data.prepare",
        "train.micro_batch",
        "train.recompute",
        "train.compile",
        "train.device",
    ),
    *("train.parallel", "train.checkpoint_every", "train.keep_last", "train.keep_every"),
    *("train.tensorboard", "train.wandb"),
}
"""Keys that say how and where a run is computed and stored.

A resumed run may change them, and seeds of one model may differ in them. Every other key decides
what the run computes.
"""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The whole config of a run; a run that is not trained has a model only."""

    model: ModelConfig
    data: DataConfig | None = None
    train: TrainConfig | None = None

    def for_training(self) -> tuple[DataConfig, TrainConfig]:
        """The sections `data` and `train`; raises if one is missing."""
        if self.data is None:
            raise ValueError("config: no data section; say where the data is: data.path")
        if self.train is None:
            raise ValueError("config: no train section; say how long: train.steps")
        return self.data, self.train


def preset(name: str) -> ModelConfig:
    """The model config of a preset; an unknown name is rejected with a suggestion."""
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(f"unknown preset '{name}'; {suggest(name, PRESETS)}")
    return PRESETS[name]


def preset_or_file(name: str) -> RunConfig:
    """The config of a preset, of the catalog, or of a file."""
    if name in PRESETS:
        return RunConfig(model=PRESETS[name])
    known = catalog.config_names()
    if name not in known and not catalog.is_path(name):
        raise ValueError(
            f"unknown preset or config '{name}'; {suggest(name, [*PRESETS, *known])}; a file of "
            f"yours ends in {catalog.SUFFIX}"
        )
    return load(name)


def check_seed(seed: int) -> int:
    """Return the seed; reject a number that torch does not accept as a seed."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must be from 0 to 2^63 - 1, got {seed}")
    return seed


@checked
def load(
    path: Path | str, overrides: Tables | None = None, *, base: ModelConfig | None = None
) -> RunConfig:
    """Read a run's config from a TOML file, or from the catalog by its name.

    `overrides` replace keys of the file. With `base`, the model of a run's parent, the file and
    `overrides` say only what is different.
    """
    path = catalog.config_file(path)
    content = read_file(path)
    try:
        data = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a config in TOML: {one_line(error)}") from None
    try:
        return run_config(data, overrides, base=base)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def run_config(
    data: dict[str, Any], overrides: Tables | None = None, *, base: ModelConfig | None = None
) -> RunConfig:
    """Build a run's config from nested tables.

    `base` and `model.preset` give the missing model keys. A preset does not change the schedule of
    `base`.
    """
    data, overrides = _with_new_names(data), _with_new_names(overrides or {})
    _check_warmup([data, overrides])
    tables = {section: data.get(section, {}) for section in (*data, *overrides)}
    for section, keys in overrides.items():
        table = tables[section]
        if section == "train" and isinstance(table, dict) and keys.keys() & set(BUDGETS):
            table = {key: value for key, value in table.items() if key not in BUDGETS}
        if section == "train" and isinstance(table, dict) and keys.keys() & set(WARMUPS):
            table = {key: value for key, value in table.items() if key not in WARMUPS}
        if section == "data" and isinstance(table, dict) and "path" in keys:
            table = _without("prepare", table)  # it makes the file's folder, not this one
        if section != "model" and isinstance(table, dict):
            tables[section] = table | keys | _objective(table, keys)
    if base is not None:
        tables.setdefault("model", {})
    sections = {key.name for key in dataclasses.fields(RunConfig)}
    if "model" not in tables and tables.keys() <= sections:
        raise ValueError(
            "model is missing; a config without a model trains that of a run: "
            "mixerloop train CONFIG --from RUN"
        )
    if isinstance(tables.get("model"), dict):
        tables["model"] = _model_table(tables["model"], overrides.get("model", {}), base)
    return with_fitting_warmup(from_dict(RunConfig, tables))


def _objective(given: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    """The table `objective` with some keys changed; another kind has other options."""
    before, changes = (table.get("objective") for table in (given, keys))
    if not isinstance(before, dict) or not isinstance(changes, dict):
        return {}
    if changes.get("kind", before.get("kind")) != before.get("kind"):
        return {}
    return {"objective": before | changes}


def _model_table(
    given: dict[str, Any], keys: dict[str, Any], base: ModelConfig | None
) -> dict[str, Any]:
    """The section `[model]` on top of its base and its preset, if any, with `keys` changed."""
    name = keys.get("preset", given.get("preset"))
    tables = [_without("preset", given), _without("preset", keys)]
    if name is not None:
        sizes = preset(name).table()
        for key in () if base is None else BESIDE_SIZES:
            sizes = _without(key, sizes)
        tables.insert(0, sizes)
    if base is not None:
        tables.insert(0, base.table())
    return functools.reduce(override, tables)


BESIDE_SIZES = ("schedule", "norm_eps", "norm_placement", "embedding_scale", "tied_head")
"""Keys that a preset does not change in the model of a parent."""


def _without(key: str, table: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != key}


OLD_FORMS = {"recurrent": "definition", "chunked": "torch"}
"""The forms of 0.1.0, where a form was called an implementation."""


def _with_new_names(data: dict[str, Any]) -> dict[str, Any]:
    """Tables whose keys have the names of this version, from tables of 0.1.0."""
    train = data.get("train")
    if not isinstance(train, dict) or "implementation" not in train:
        return data
    if "form" in train:
        raise ValueError("train.implementation is the old name of train.form; give one of them")
    old = train["implementation"]
    form = OLD_FORMS.get(old, old) if isinstance(old, str) else old
    named = {key: value for key, value in train.items() if key != "implementation"}
    return data | {"train": named | {"form": form}}


def _check_warmup(tables: Sequence[dict[str, Any]]) -> None:
    """Reject a warm-up longer than the steps that were set before it or with it.

    Later tables override earlier tables. A warm-up that is followed by new steps in a later table
    is not rejected: `with_fitting_warmup` cuts it to fit, like the default.
    """
    steps = warmup = None
    for table in tables:
        given = table.get("train")
        if not isinstance(given, dict):
            continue
        if all(given.get(key) is not None for key in WARMUPS):
            raise ValueError("train: give one of warmup_steps and warmup; both are given")
        warmup = given.get("warmup_steps", None if "steps" in given else warmup)
        steps = given.get("steps", steps)
        if type(steps) is int and type(warmup) is int and warmup > steps:
            raise ValueError(
                f"train.warmup_steps = {warmup:,} is more than the {steps:,} steps there are"
            )


def with_fitting_warmup(config: RunConfig) -> RunConfig:
    """Cut a warm-up in steps that is longer than the run to half of the run's steps."""
    train = config.train
    if train is None or train.steps is None or train.warmup_steps <= train.steps:
        return config
    return replace(config, train=replace(train, warmup_steps=train.steps // 2))


def dump(config: RunConfig) -> str:
    """A config as TOML with all keys, the schedule in notation and pass rules with their units."""
    model = config.model
    rules = model.pass_rules()
    options = {
        name: rules.get(name, given)
        for name, given in model.options.items()
        if name in rules or KINDS[name].role != "pass rule"
    }
    resolved = replace(model, schedule=notation(model.occurrences()), options=options)
    sections = {
        "model": resolved.table(),
        "data": None if config.data is None else dataclasses.asdict(config.data),
        "train": None if config.train is None else config.train.table(),
    }
    return tomli_w.dumps(_without_none(sections))


def differences(old: RunConfig, new: RunConfig) -> dict[str, tuple[Any, Any]]:
    """The keys, as section.key, in which two configs differ, with both values."""
    before, after = _flat(old), _flat(new)
    return {
        key: (before.get(key), after.get(key))
        for key in (*before, *(key for key in after if key not in before))
        if before.get(key) != after.get(key)
    }


def check_same_run(old: RunConfig, new: RunConfig, *, where: str) -> None:
    """Reject a config that changes what a resumed run computes; the error names the key."""
    for key, (before, after) in differences(old, new).items():
        if key not in MAY_CHANGE:
            raise ValueError(
                f"{where}: {key} was {said(before)} and would be {said(after)}; it decides what "
                "is computed, so start a new run to change it"
            )


def said(value: object) -> str:
    """The value of a key in a sentence."""
    return "not set" if value is None else str(value)


def _flat(config: RunConfig) -> dict[str, Any]:
    return _flat_table(tomllib.loads(dump(config)))


def _flat_table(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat_table(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _without_none(value: Any) -> Any:
    """Drop keys whose value is None, because TOML has no null."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value
