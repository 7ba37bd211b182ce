"""The registry of kinds, by name."""

import importlib
from dataclasses import dataclass
from typing import Any, Literal

from mixerloop.parsing import suggest

Role = Literal["mixer", "ffn", "pass rule", "objective"]
LARGEST_SIZE = 2**24  # wider than any model; a slip should not ask for all the memory there is
MOST_LAYERS = 2000  # deeper than any model; making the modules of a layer takes milliseconds


@dataclass(frozen=True)
class Kind:
    """A sort of mixer, ffn, pass rule or objective."""

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
    *("norm_placement", "embedding_scale", "tied_head", "options"),
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
    if not isinstance(value, int):
        raise TypeError(f"{name} must be int, got {value!r}")
    if not 1 <= value <= most:
        raise ValueError(f"{name} must be from 1 to {most:,}, got {value}")
