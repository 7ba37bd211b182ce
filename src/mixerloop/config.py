"""Every knob: frozen dataclasses, read strictly from TOML."""

import dataclasses
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import tomli_w

from mixerloop.notation import notation, resolve
from mixerloop.parsing import from_dict, one_line, suggest
from mixerloop.schedule import Schedule, Unit, repeated_unit

Form = Literal["definition", "torch", "native", "fla"]
FormChoice = Literal["auto", "definition", "torch", "native", "fla"]
"""The form of a mixer's recurrence; `auto` is the fastest there is."""
ComputeDtype = Literal["float32", "bfloat16"]
"""What projections are computed in; weights, decays, norms and sums stay float32."""
ComputeDtypeChoice = Literal["auto", "float32", "bfloat16"]
"""`auto` is bfloat16 where this machine multiplies it faster, which is measured."""
InitRule = Literal["shared", "released"]
"""`shared`: one draw for every schedule. `released`: as in the authors' code, where the output
projection of the repeated sublayer starts smaller."""
PassResidual = Literal["none", "mixer", "ffn", "block", "stack", "released"]
"""What one pass is, for the learned residual around each pass; `released`: what the schedule
repeats, as in the authors' code."""
Parallel = Literal["ddp", "fsdp"]
"""What several processes share: `ddp` gradients; `fsdp` weights and optimizer state as well."""
Device = Literal["auto", "cpu", "cuda"]
"""`auto` is CUDA where there is one."""
UNITS = get_args(Unit)
BUDGETS = ("steps", "tokens", "flops", "seconds")

Tables = dict[str, dict[str, Any]]
"""Sections and their keys, as TOML has them."""

LARGEST_NUMBER = 1e30  # more operations than anyone will spend on one run
LARGEST_SIZE = 2**24  # wider than any model; a slip should not ask for all the memory there is


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One physical stack of layers and the schedule that walks it."""

    num_layers: int
    """Physical layers, each a mixer and an ffn with their norms."""
    d_model: int
    """Width of the residual."""
    num_heads: int
    """Heads of the mixer."""
    d_head: int
    """Width of a head's keys and queries, and of its values unless d_value says otherwise."""
    d_ffn: int
    """Inner width of the SwiGLU ffn."""
    vocab_size: int
    """Rows of the tied embedding."""
    schedule: str = "mixer_loop"
    """Notation such as 6x(A4 F), or a named loop: mixer_loop, full_loop(2)."""
    mixer: Literal["gated_delta_net"] = "gated_delta_net"
    """What mixes across tokens."""
    d_value: int | None = None
    """Width of a head's values where it is not d_head."""
    negative_eigenvalues: bool = False
    """Write strengths up to 2 instead of 1, so that a write may turn a memory round."""
    conv_width: int = 4
    """Tokens the short convolution in front of the mixer sees."""
    norm_eps: float = 1e-5
    """Added to the mean square in every RMSNorm."""
    pass_residual: PassResidual = "none"
    """Learn, for each pass round this unit, how much of what entered is added to what leaves."""

    def __post_init__(self) -> None:
        """Refuse sizes that no model can have and a schedule that does not fit the layers."""
        for name in (
            *("num_layers", "d_model", "num_heads", "d_head", "d_ffn", "vocab_size", "conv_width"),
        ):
            if not 1 <= (value := getattr(self, name)) <= LARGEST_SIZE:
                raise ValueError(f"model.{name} must be from 1 to {LARGEST_SIZE:,}, got {value}")
        if self.d_value is not None and not 1 <= self.d_value <= LARGEST_SIZE:
            raise ValueError(
                f"model.d_value must be from 1 to {LARGEST_SIZE:,}, got {self.d_value}"
            )
        if not 0 < self.norm_eps < math.inf:
            raise ValueError(f"model.norm_eps must be above 0, got {self.norm_eps}")
        self.occurrences()
        self.residual_unit()

    @property
    def value_width(self) -> int:
        """Width of a head's values."""
        return self.d_head if self.d_value is None else self.d_value

    @property
    def largest_write(self) -> float:
        """The bound of a write strength."""
        return 2.0 if self.negative_eigenvalues else 1.0

    def occurrences(self) -> Schedule:
        """The schedule itself."""
        try:
            return resolve(self.schedule, self.num_layers)
        except ValueError as error:
            raise ValueError(f"model.{error}") from None

    def residual_unit(self) -> Unit | None:
        """What a pass of the learned residual goes round, if there is such a residual."""
        if self.pass_residual == "none":
            return None
        if self.pass_residual != "released":
            return self.pass_residual
        try:
            return repeated_unit(self.occurrences())
        except ValueError as error:
            raise ValueError(
                f"model.pass_residual = 'released': {error}; name a unit: {', '.join(UNITS)}"
            ) from None


def check_fits(what: object, num_ids: int, vocab_size: int) -> None:
    """Refuse token ids the model has no embedding for."""
    if num_ids > vocab_size:
        raise ValueError(f"{what}: {num_ids:,} token ids do not fit the model's {vocab_size:,}")


PRESETS = {
    "nano": ModelConfig(
        num_layers=4, d_model=128, num_heads=4, d_head=32, d_ffn=352, vocab_size=4096
    ),
    "15m": ModelConfig(
        num_layers=6, d_model=288, num_heads=4, d_head=72, d_ffn=768, vocab_size=32_000
    ),
    "42m": ModelConfig(
        num_layers=8, d_model=512, num_heads=8, d_head=64, d_ffn=1376, vocab_size=32_000
    ),
    "110m": ModelConfig(
        num_layers=12, d_model=768, num_heads=12, d_head=64, d_ffn=2048, vocab_size=32_000
    ),
    "105m": ModelConfig(
        num_layers=24, d_model=512, num_heads=16, d_head=32, d_ffn=1536, vocab_size=32_000
    ),
    "328m": ModelConfig(
        num_layers=20, d_model=1024, num_heads=32, d_head=32, d_ffn=3072, vocab_size=32_000
    ),
    "604m": ModelConfig(
        num_layers=32, d_model=1024, num_heads=32, d_head=32, d_ffn=3072, vocab_size=128_256
    ),
}
"""Sizes. 15m and 110m are the paper's. 105m, 328m and 604m are published in a later release. Of 42m
only 8 layers and 4 passes are published: the rest is inferred. nano is for a laptop."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is trained on."""

    path: str
    """A folder made by mixerloop data prepare."""
    context: int | None = None
    """Tokens of a window; a made task such as hops has its own."""

    def __post_init__(self) -> None:
        """Refuse windows of nothing."""
        if self.context is not None and self.context < 1:
            raise ValueError(f"data.context must be at least 1, got {self.context}")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How it is trained; what is not given is the paper's recipe."""

    steps: int | None = None
    """Budget in updates. Give exactly one of steps, tokens, flops and seconds."""
    tokens: int | None = None
    """Budget in tokens trained on."""
    flops: float | None = None
    """Budget in floating point operations, forward and backward, loops counted."""
    seconds: float | None = None
    """Budget in seconds of training; what is reached then depends on the machine."""
    seed: int = 1337
    """Seed of the weights, of the order of data and of whatever else is drawn."""
    init: InitRule = "shared"
    """shared: one draw for every schedule; released: as in the authors' code, where the output
    projection of the repeated sublayer starts smaller."""
    global_batch: int = 512
    """Windows of one update, over all ranks."""
    micro_batch: int | None = None
    """Windows of one forward and backward on one rank; all of its share unless you say so."""
    peak_lr: float = 5e-4
    """Learning rate after the warm-up; a cosine takes it to zero."""
    warmup_steps: int = 1000
    """Updates until the peak; of a budget that is too short for them, the first half."""
    weight_decay: float = 0.1
    """Decay of matrices, filters and the embedding."""
    clip_norm: float = 1.0
    """Largest norm of the gradient; longer ones are scaled down to it."""
    compute_dtype: ComputeDtypeChoice = "auto"
    """Type of the projections; weights, decays, norms and sums stay float32. A run keeps what auto
    was when it began."""
    form: FormChoice = "auto"
    """Form of the mixer's recurrence."""
    recompute: bool = False
    """Keep only what enters each occurrence and compute it again in the backward."""
    compile: bool = False
    """Compile the layers with torch.compile."""
    device: Device = "auto"
    """Where to train."""
    parallel: Parallel = "ddp"
    """What several processes share: gradients, or weights and optimizer state as well."""
    evaluate_every: int | None = None
    """Steps between measurements of the held-out NLL; the last step has one anyway."""
    evaluate_windows: int = 256
    """Held-out windows a measurement reads, or all there are."""
    checkpoint_every: int = 1000
    """Steps between checkpoints; the last step has one anyway."""
    keep_last: int = 2
    """Newest checkpoints that are kept."""
    keep_every: int | None = None
    """Also keep the checkpoints of these steps."""
    tensorboard: bool = True
    """Write event files for TensorBoard."""
    wandb: str | None = None
    """Report to this project at Weights & Biases."""

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"{' and '.join(given)} are given" if given else "none is"
            raise ValueError(f"train: give one of {', '.join(BUDGETS)}; {found}")
        check_seed(self.seed)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "seed" and isinstance(value, int | float) and value > LARGEST_NUMBER:
                raise ValueError(f"train.{field.name} must be at most {LARGEST_NUMBER:g}")
        for name in (*given, "peak_lr", "clip_norm"):
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
            *("checkpoint_every", "keep_last", "keep_every"),
        ):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"train.{name} must be at least 1, got {value}")

    @property
    def product_dtype(self) -> ComputeDtype:
        """What `compute_dtype` says, once `auto` is settled."""
        assert self.compute_dtype != "auto", "a run settles this when it begins"
        return self.compute_dtype


MAY_CHANGE = {
    *("data.path", "train.micro_batch", "train.recompute", "train.compile", "train.device"),
    *("train.parallel", "train.checkpoint_every", "train.keep_last", "train.keep_every"),
    *("train.tensorboard", "train.wandb"),
}
"""How and where a run is computed and kept; everything else decides what it computes."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything one run needs; a run that is not trained has a model only."""

    model: ModelConfig
    data: DataConfig | None = None
    train: TrainConfig | None = None

    def for_training(self) -> tuple[DataConfig, TrainConfig]:
        """The sections a run needs to be trained."""
        if self.data is None:
            raise ValueError("config: no data section; say where the data is: data.path")
        if self.train is None:
            raise ValueError("config: no train section; say how long: train.steps")
        return self.data, self.train


def preset(name: str) -> ModelConfig:
    """A preset by its name."""
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(f"unknown preset '{name}'; {suggest(name, PRESETS)}")
    return PRESETS[name]


def preset_or_file(name: str) -> RunConfig:
    """The config of a preset, or of a TOML file."""
    return load(Path(name)) if name.endswith(".toml") else RunConfig(model=preset(name))


def check_seed(seed: int) -> int:
    """A seed torch can take."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must be from 0 to 2^63 - 1, got {seed}")
    return seed


def load(path: Path | str, overrides: Tables | None = None) -> RunConfig:
    """Read a run's config from a TOML file; overrides take the place of what it says."""
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot read this config: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a config in TOML: {one_line(error)}") from None
    try:
        return run_config(data, overrides)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def run_config(data: dict[str, Any], overrides: Tables | None = None) -> RunConfig:
    """Build a run's config from nested tables; `model.preset` fills in what is not given."""
    _check_warmup([data, overrides or {}])
    for section, keys in (overrides or {}).items():
        table = data.get(section, {})
        if section == "train" and isinstance(table, dict) and keys.keys() & set(BUDGETS):
            table = {key: value for key, value in table.items() if key not in BUDGETS}
        data = data | {section: table | keys if isinstance(table, dict) else table}
    model = data.get("model")
    if isinstance(model, dict) and "preset" in model:
        given = {key: value for key, value in model.items() if key != "preset"}
        data = data | {"model": dataclasses.asdict(preset(model["preset"])) | given}
    return with_fitting_warmup(from_dict(RunConfig, data))


def _check_warmup(tables: Sequence[dict[str, Any]]) -> None:
    """Refuse a warm-up that was chosen knowing of fewer steps; later tables overrule earlier ones.

    A warm-up that comes from the file, or is the default, is cut to fit steps that come later.
    """
    steps = warmup = None
    for table in tables:
        given = table.get("train")
        if not isinstance(given, dict):
            continue
        warmup = given.get("warmup_steps", None if "steps" in given else warmup)
        steps = given.get("steps", steps)
        if isinstance(steps, int) and isinstance(warmup, int) and warmup > steps:
            raise ValueError(
                f"train.warmup_steps = {warmup:,} is more than the {steps:,} steps there are"
            )


def with_fitting_warmup(config: RunConfig) -> RunConfig:
    """Of steps that are too few for the warm-up, the first half is one."""
    train = config.train
    if train is None or train.steps is None or train.warmup_steps <= train.steps:
        return config
    return replace(config, train=replace(train, warmup_steps=train.steps // 2))


def dump(config: RunConfig) -> str:
    """A config as TOML with everything written out, the schedule in notation."""
    model = replace(
        config.model,
        schedule=notation(config.model.occurrences()),
        pass_residual=config.model.residual_unit() or "none",
    )
    return tomli_w.dumps(_without_none(dataclasses.asdict(replace(config, model=model))))


def differences(old: RunConfig, new: RunConfig) -> dict[str, tuple[Any, Any]]:
    """The keys, as section.key, in which two configs differ, with both values."""
    before, after = _flat(old), _flat(new)
    return {
        key: (before.get(key), after.get(key))
        for key in (*before, *(key for key in after if key not in before))
        if before.get(key) != after.get(key)
    }


def check_same_run(old: RunConfig, new: RunConfig, *, where: str) -> None:
    """Reject a config under which a resumed run would compute something else; name the key."""
    for key, (before, after) in differences(old, new).items():
        if key not in MAY_CHANGE:
            raise ValueError(
                f"{where}: {key} was {_said(before)} and would be {_said(after)}; it decides what "
                "is computed, so start a new run to change it"
            )


def _said(value: object) -> str:
    return "not set" if value is None else str(value)


def _flat(config: RunConfig) -> dict[str, Any]:
    return {
        f"{section}.{key}": value
        for section, keys in tomllib.loads(dump(config)).items()
        for key, value in keys.items()
    }


def _without_none(value: Any) -> Any:
    """TOML has no null; what is absent is left out."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value
