"""Kinds: the sorts of mixer, ffn and pass rule that a model can be made of, with their options.

A kind is registered once, under its name. Its options are a frozen dataclass, which is the table
`[model.NAME]` of a config. Its class is named by module, and loaded when a model is made: reading a
config loads no torch. See `docs/decisions/kinds.md`.
"""

import importlib
from dataclasses import dataclass
from typing import Any, Literal

from mixerloop.parsing import suggest

Role = Literal["mixer", "ffn", "pass rule"]
LARGEST_SIZE = 2**24  # wider than any model; a slip should not ask for all the memory there is
MOST_LAYERS = 2000  # deeper than any model; making the modules of a layer takes milliseconds


@dataclass(frozen=True)
class Kind:
    """A sort of mixer, ffn or pass rule."""

    name: str
    role: Role
    options: type[Any]
    """A frozen dataclass. The options of a pass rule have a field `unit`."""
    home: str | type[Any]
    """The class, or `package.module:Class` to load it from."""

    def load(self) -> type[Any]:
        """The class of this kind."""
        if not isinstance(self.home, str):
            return self.home
        module, _, name = self.home.partition(":")
        return getattr(importlib.import_module(module), name)


RESERVED = (
    *("preset", "num_layers", "d_model", "vocab_size", "schedule", "mixer", "ffn", "norm_eps"),
    "options",
)
"""Keys of `[model]`, which no kind may be called."""
KINDS: dict[str, Kind] = {}
"""All registered kinds, by name."""


def register(kind: Kind) -> None:
    """Make a kind known to configs and models; registering the same kind again changes nothing."""
    if not kind.name.isidentifier():
        raise ValueError(f"'{kind.name}' cannot name a kind: it names a table of a config")
    if kind.name in RESERVED:
        raise ValueError(f"'{kind.name}' cannot name a kind: it is a key of [model]")
    known = KINDS.setdefault(kind.name, kind)
    same = [(one.role, one.options.__module__, one.options.__qualname__) for one in (known, kind)]
    if same[0] != same[1]:
        raise ValueError(f"there is another {known.role} of the kind {kind.name}")
    KINDS[kind.name] = kind


def kind_of(name: str, role: Role) -> Kind:
    """A registered kind; an unknown name is rejected with the near one."""
    known = [kind.name for kind in KINDS.values() if kind.role == role]
    if name not in known:
        raise ValueError(f"unknown {role} '{name}'; {suggest(name, known)}")
    return KINDS[name]


def check_size(name: str, value: int, *, most: int = LARGEST_SIZE) -> None:
    """Reject a size that no model can have."""
    if not 1 <= value <= most:
        raise ValueError(f"{name} must be from 1 to {most:,}, got {value}")


# --- the kinds that come with the package --------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNetOptions:
    """Options of the Gated DeltaNet mixer."""

    num_heads: int
    """Heads of the mixer."""
    d_head: int
    """Width of a head's keys and queries, and of its values unless d_value says otherwise."""
    d_value: int | None = None
    """Width of a head's values where it is not d_head."""
    negative_eigenvalues: bool = False
    """Write strengths up to 2 instead of 1, so that a write may turn a memory round."""
    conv_width: int = 4
    """Tokens the short convolution in front of the mixer sees."""

    def __post_init__(self) -> None:
        """Reject impossible sizes."""
        for name in ("num_heads", "d_head", "conv_width"):
            check_size(name, getattr(self, name))
        if self.d_value is not None:
            check_size("d_value", self.d_value)

    @property
    def value_width(self) -> int:
        """Width of a head's values."""
        return self.d_head if self.d_value is None else self.d_value

    @property
    def largest_write(self) -> float:
        """The bound of a write strength."""
        return 2.0 if self.negative_eigenvalues else 1.0


@dataclass(frozen=True, kw_only=True)
class SwiGLUOptions:
    """Options of the SwiGLU ffn."""

    d_ffn: int
    """Inner width of the SwiGLU ffn."""

    def __post_init__(self) -> None:
        """Reject impossible sizes."""
        check_size("d_ffn", self.d_ffn)


@dataclass(frozen=True, kw_only=True)
class PassResidualOptions:
    """Options of the learned residual around each pass."""

    unit: str
    """A pass goes round this unit: mixer, ffn, block or stack; released: round the unit that the
    schedule repeats, as in the authors' code."""


for _kind in (
    Kind(
        "gated_delta_net",
        "mixer",
        GatedDeltaNetOptions,
        "mixerloop.model.mixers.gated_delta_net:GatedDeltaNet",
    ),
    Kind("swiglu", "ffn", SwiGLUOptions, "mixerloop.model.ffns.swiglu:SwiGLU"),
    Kind(
        "pass_residual",
        "pass rule",
        PassResidualOptions,
        "mixerloop.model.passes.pass_residual:PassResidual",
    ),
):
    register(_kind)
