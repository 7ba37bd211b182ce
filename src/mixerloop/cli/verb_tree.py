"""The verbs of the command as a tree: names, help, options and choices, without the parser."""

import dataclasses
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

HELP = "--help"
Markers = tuple[Any, ...]
"""What `Annotated` says about a field for the parser."""


@dataclass(frozen=True)
class Option:
    """An option, or a positional argument, whose name has no dashes."""

    name: str
    choices: tuple[str, ...] = ()
    """The only values, if they are few."""
    is_flag: bool = False
    """Whether the option takes no value."""
    is_many: bool = False
    """Whether any number of values may follow the name."""
    number: type[int] | type[float] | None = None
    """The type of its values, if they are numbers."""

    @property
    def is_positional(self) -> bool:
        """Whether the value stands alone."""
        return not self.name.startswith("--")


@dataclass(frozen=True)
class Verb:
    """A verb, or a verb of a verb, such as `prepare` of `data`."""

    path: tuple[str, ...]
    about: str
    """The text of its help."""
    options: tuple[Option, ...]
    verbs: tuple["Verb", ...]

    @property
    def names(self) -> list[str]:
        """The names of its verbs."""
        return [verb.path[-1] for verb in self.verbs]

    @property
    def option_names(self) -> list[str]:
        """The names of its options, and that of help."""
        return [*(option.name for option in self.options if not option.is_positional), HELP]

    def option(self, name: str) -> Option | None:
        """The option of this name, which may have `_` for `-`."""
        name = name.replace("_", "-")
        return next((option for option in self.options if option.name == name), None)

    def walk(self) -> Iterator["Verb"]:
        """This verb and all below it."""
        yield self
        for verb in self.verbs:
            yield from verb.walk()

    def at(self, words: Sequence[str]) -> "Verb":
        """The verb that the words at the beginning of a command line name."""
        for verb in self.verbs:
            if words and words[0] == verb.path[-1]:
                return verb.at(words[1:])
        return self


def tree_of(union: Any, *, about: str = "") -> Verb:
    """The tree of a union of verbs as the parser is given it."""
    return Verb((), about, (), tuple(_verbs(union, ())))


def _verbs(union: Any, path: tuple[str, ...]) -> Iterator[Verb]:
    for member in typing.get_args(union):
        (named,) = (marker for marker in member.__metadata__ if _names_a_verb(marker))
        here = (*path, named.name)
        options, verbs = _fields(member.__origin__, here)
        yield Verb(here, named.description or "", tuple(options), tuple(verbs))


def _fields(cls: type, path: tuple[str, ...]) -> tuple[list[Option], list[Verb]]:
    """The options and the verbs of a dataclass, and of the dataclasses in its fields."""
    hints = typing.get_type_hints(cls, include_extras=True)
    options, verbs = list[Option](), list[Verb]()
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            below = _fields(typing.cast(type, hint), path)
            options += below[0]
            verbs += below[1]
        elif _is_union_of_verbs(hint):
            verbs += _verbs(hint, path)
        else:
            options.append(_option(field.name, *_parts(hint)))
    return options, verbs


def _parts(hint: Any) -> tuple[Any, Markers]:
    """A type, and what its annotations say about it."""
    if typing.get_origin(hint) is Annotated:
        kind, *markers = typing.get_args(hint)
        return kind, tuple(markers)
    return hint, ()


def _option(field_name: str, kind: Any, markers: Markers) -> Option:
    named = [marker.name for marker in markers if getattr(marker, "name", None) is not None]
    name = (named[0] if named else field_name).replace("_", "-")
    if tyro.conf.Positional not in markers:
        name = f"--{name}"
    is_many = _is_many(kind) and tyro.conf.UseAppendAction not in markers
    return Option(name, _choices(kind), kind is bool, is_many, _number(kind))


def _choices(kind: Any) -> tuple[str, ...]:
    if typing.get_origin(kind) is Literal:
        return tuple(map(str, typing.get_args(kind)))
    return tuple(choice for part in typing.get_args(kind) for choice in _choices(part))


def _number(kind: Any) -> type[int] | type[float] | None:
    atoms = set(_atoms(kind))
    return int if atoms == {int} else float if atoms in ({float}, {int, float}) else None


def _atoms(kind: Any) -> Iterator[Any]:
    """The types that a type is made of, without None."""
    if parts := typing.get_args(kind):
        yield from (atom for part in parts for atom in _atoms(part))
    elif kind not in (types.NoneType, Ellipsis):
        yield kind


def _is_many(kind: Any) -> bool:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return any(map(_is_many, typing.get_args(kind)))
    return typing.get_origin(kind) in (tuple, list)


def _is_union_of_verbs(hint: Any) -> bool:
    return any(
        _names_a_verb(marker)
        for member in typing.get_args(hint)
        for marker in getattr(member, "__metadata__", ())
    )


def _names_a_verb(marker: Any) -> bool:
    """Whether a marker is that of `tyro.conf.subcommand`, whose class has no public name."""
    return hasattr(marker, "is_default")
