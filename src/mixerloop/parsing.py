"""Dataclasses from nested tables, strictly: what is not understood is named, with the near name."""

import dataclasses
import difflib
import types
from collections.abc import Iterable
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from typeguard import TypeCheckError, check_type

T = TypeVar("T")


def one_of(choices: Any, value: str, what: str) -> Any:
    """`value`, if it is one of the choices of a Literal."""
    if value not in get_args(choices):
        raise ValueError(f"unknown {what} '{value}'; {suggest(value, get_args(choices))}")
    return value


def from_dict(cls: type[T], data: dict[str, Any], where: str = "") -> T:
    """Build a dataclass from nested dicts; unknown or missing keys and wrong types are errors."""
    hints = get_type_hints(cls)
    for key in data:
        if key not in hints:
            place = where.rstrip(".") or "config"
            raise ValueError(f"{place}: unknown key {key}; {suggest(key, hints)}")
    values = {}
    for field in dataclasses.fields(cls):  # pyright: ignore[reportArgumentType]
        name, hint = f"{where}{field.name}", hints[field.name]
        if field.name in data:
            values[field.name] = _typed(data[field.name], hint, name)
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{name} is missing")
    return cls(**values)


def _typed(value: Any, hint: Any, name: str) -> Any:
    """TOML and JSON have tables, lists and scalars; a dataclass also has tuples."""
    if get_origin(hint) in (Union, types.UnionType):
        if value is None and type(None) in get_args(hint):
            return None
        (hint,) = [option for option in get_args(hint) if option is not type(None)]
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise ValueError(f"{name} must be a table, got {value!r}")
        from_table = getattr(hint, "from_table", None)
        if from_table is not None:  # of a dataclass whose table has other keys than its fields
            return from_table(value)
        return from_dict(hint, value, f"{name}.")  # pyright: ignore[reportArgumentType]
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{name} must be a list, got {value!r}")
        item = get_args(hint)[0]
        return tuple(_typed(one, item, f"{name}[{index}]") for index, one in enumerate(value))
    try:
        if isinstance(value, bool) and hint is not bool:
            raise TypeCheckError(f"bool is not an instance of {hint}")
        return check_type(value, hint)
    except TypeCheckError as error:
        raise ValueError(f"{name} = {value!r}: {one_line(error)}") from None


def suggest(name: object, known: Iterable[str]) -> str:
    """The near name, and all there are."""
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"{f'did you mean {near[0]}? ' if near else ''}known: {', '.join(known)}"


def one_line(error: Exception) -> str:
    """A message without its line breaks."""
    return " ".join(str(error).split())
