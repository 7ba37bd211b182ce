"""Every knob: frozen dataclasses, read strictly from TOML."""

import dataclasses
import difflib
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

import tomli_w
from typeguard import TypeCheckError, check_type

from mixerloop.notation import notation, resolve
from mixerloop.schedule import Schedule

T = TypeVar("T")


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
    """Width of a head's keys, queries and values."""
    d_ffn: int
    """Inner width of the SwiGLU ffn."""
    vocab_size: int
    """Rows of the tied embedding."""
    schedule: str = "mixer_loop"
    """Notation such as 6x(A4 F), or a named loop: mixer_loop, full_loop(2)."""
    mixer: Literal["gated_delta_net"] = "gated_delta_net"
    """What mixes across tokens."""
    conv_width: int = 4
    """Tokens the short convolution in front of the mixer sees."""
    norm_eps: float = 1e-5
    """Added to the mean square in every RMSNorm."""
    pass_residual: bool = False
    """Learn, for each pass, how much of what entered the pass is added to what leaves it."""

    def __post_init__(self) -> None:
        """Refuse sizes that no model can have and a schedule that does not fit the layers."""
        for name in (
            *("num_layers", "d_model", "num_heads", "d_head", "d_ffn", "vocab_size", "conv_width"),
        ):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"model.{name} must be at least 1, got {value}")
        if self.norm_eps <= 0:
            raise ValueError(f"model.norm_eps must be above 0, got {self.norm_eps}")
        self.occurrences()

    def occurrences(self) -> Schedule:
        """The schedule itself."""
        try:
            return resolve(self.schedule, self.num_layers)
        except ValueError as error:
            raise ValueError(f"model.{error}") from None


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
}
"""Sizes: 15m and 110m are the paper's, 42m is the released one, nano is for a laptop."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything one run needs."""

    model: ModelConfig


def preset(name: str) -> ModelConfig:
    """A preset by its name."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset '{name}'; {_suggest(name, PRESETS)}")
    return PRESETS[name]


def load(path: Path) -> RunConfig:
    """Read a run's config from a TOML file."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: cannot read this config: {error}") from None
    try:
        return run_config(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def run_config(data: dict[str, Any]) -> RunConfig:
    """Build a run's config from nested tables; `model.preset` fills in what is not given."""
    model = data.get("model")
    if isinstance(model, dict) and "preset" in model:
        given = {key: value for key, value in model.items() if key != "preset"}
        data = data | {"model": dataclasses.asdict(preset(model["preset"])) | given}
    return from_dict(RunConfig, data)


def dump(config: RunConfig) -> str:
    """A config as TOML with everything written out, the schedule in notation."""
    model = replace(config.model, schedule=notation(config.model.occurrences()))
    return tomli_w.dumps(dataclasses.asdict(replace(config, model=model)))


def from_dict(cls: type[T], data: dict[str, Any], where: str = "") -> T:
    """Build a dataclass from nested dicts; unknown or missing keys and wrong types are errors."""
    hints = get_type_hints(cls)
    for key in data:
        if key not in hints:
            place = where.rstrip(".") or "config"
            raise ValueError(f"{place}: unknown key {key}; {_suggest(key, hints)}")
    values = {}
    for field in dataclasses.fields(cls):  # pyright: ignore[reportArgumentType]
        name, hint = f"{where}{field.name}", hints[field.name]
        if field.name in data:
            values[field.name] = _typed(data[field.name], hint, name)
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{name} is missing")
    return cls(**values)


def _typed(value: Any, hint: Any, name: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise ValueError(f"{name} must be a table, got {value!r}")
        return from_dict(hint, value, f"{name}.")  # pyright: ignore[reportArgumentType]
    try:
        if isinstance(value, bool) and hint is not bool:
            raise TypeCheckError(f"bool is not an instance of {hint}")
        return check_type(value, hint)
    except TypeCheckError as error:
        raise ValueError(f"{name} = {value!r}: {error}") from None


def _suggest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"{f'did you mean {near[0]}? ' if near else ''}known: {', '.join(known)}"
