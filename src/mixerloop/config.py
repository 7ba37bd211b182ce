"""Every knob: frozen dataclasses, read strictly from TOML."""

import dataclasses
import math
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tomli_w

from mixerloop.notation import notation, resolve
from mixerloop.schedule import Schedule
from mixerloop.strict import from_dict, one_line, suggest

Implementation = Literal["recurrent", "chunked"]
ImplementationChoice = Literal["auto", "recurrent", "chunked"]
"""The form of a mixer's recurrence; `auto` is the fastest there is."""
ComputeDtype = Literal["float32", "bfloat16"]
"""What projections are computed in; weights, decays, norms and sums stay float32."""
InitRule = Literal["shared", "released"]
"""`shared`: one draw for every schedule. `released`: output projections shrink with depth."""
PassResidual = Literal["none", "mixer", "ffn", "block", "stack"]
"""What one pass is, for the learned residual around each pass."""

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
    pass_residual: PassResidual = "none"
    """Learn, for each pass round this unit, how much of what entered is added to what leaves."""

    def __post_init__(self) -> None:
        """Refuse sizes that no model can have and a schedule that does not fit the layers."""
        for name in (
            *("num_layers", "d_model", "num_heads", "d_head", "d_ffn", "vocab_size", "conv_width"),
        ):
            if not 1 <= (value := getattr(self, name)) <= LARGEST_SIZE:
                raise ValueError(f"model.{name} must be from 1 to {LARGEST_SIZE:,}, got {value}")
        if not 0 < self.norm_eps < math.inf:
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


def load(path: Path) -> RunConfig:
    """Read a run's config from a TOML file."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot read this config: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a config in TOML: {one_line(error)}") from None
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
    return tomli_w.dumps(_without_none(dataclasses.asdict(replace(config, model=model))))


def _without_none(value: Any) -> Any:
    """TOML has no null; what is absent is left out."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value
