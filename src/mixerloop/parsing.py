"""Build dataclasses from nested tables; errors name an unknown key and the nearest known key."""

import dataclasses
import difflib
import types
from collections.abc import Iterable
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from typeguard import TypeCheckError, check_type

from mixerloop.messages import one_line

T = TypeVar("T")


def one_of(choices: Any, value: str, what: str) -> Any:
    """`value` if it is one of the choices of a Literal; raises otherwise."""
    if value not in get_args(choices):
        raise ValueError(f"unknown {what} '{value}'; {suggest(value, get_args(choices))}")
    return value


def from_dict(cls: type[T], data: dict[str, Any], where: str = "") -> T:
    """Build a dataclass from nested dicts; unknown or missing keys and wrong types are errors.

    The key of a field is its name, or the `key` of its metadata: `from` cannot name a field.
    """
    hints = get_type_hints(cls)
    fields = {
        field.metadata.get("key", field.name): field
        for field in dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    }
    for key in data:
        if key not in fields:
            place = where.rstrip(".") or "config"
            raise ValueError(f"{place}: unknown key {key}; {suggest(key, fields)}")
    values = {}
    for key, field in fields.items():
        name, hint = f"{where}{key}", hints[field.name]
        if key in data:
            values[field.name] = _typed(data[key], hint, name)
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{name} is missing")
    return cls(**values)


def _typed(value: Any, hint: Any, name: str) -> Any:
    """Convert a table, list or scalar of TOML or JSON to the type of a field, such as a tuple."""
    if get_origin(hint) in (Union, types.UnionType):
        return _typed_union(value, get_args(hint), name)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise ValueError(f"{name} must be a table, got {value!r}")
        from_table = getattr(hint, "from_table", None)
        if from_table is not None:  # the dataclass has a table with other keys than its fields
            return from_table(value)
        return from_dict(hint, value, f"{name}.")  # pyright: ignore[reportArgumentType]
    if get_origin(hint) is tuple:
        return _typed_tuple(value, get_args(hint), name)
    if get_origin(hint) is dict:
        return _typed_mapping(value, get_args(hint), name)
    try:
        if isinstance(value, bool) and hint is not bool:
            raise TypeCheckError(f"bool is not an instance of {hint}")
        return check_type(value, hint)
    except TypeCheckError as error:
        raise ValueError(f"{name} = {value!r}: {one_line(error)}") from None


def _typed_union(value: Any, options: tuple[Any, ...], name: str) -> Any:
    """The first option that fits; with a single option beside None, the error is that option's."""
    if value is None and type(None) in options:
        return None
    options = tuple(option for option in options if option is not type(None))
    if len(options) == 1:
        return _typed(value, options[0], name)
    for option in options:
        try:
            return _typed(value, option, name)
        except ValueError:
            continue
    allowed = " or ".join(getattr(option, "__name__", str(option)) for option in options)
    raise ValueError(f"{name} must be {allowed}, got {value!r}")


def _typed_tuple(value: Any, items: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, got {value!r}")
    if items[-1] is Ellipsis:
        items = items[:1] * len(value)
    elif len(value) != len(items):
        raise ValueError(f"{name} must have {len(items)} items, got {len(value)}")
    return tuple(
        _typed(item, hint, f"{name}[{index}]")
        for index, (item, hint) in enumerate(zip(value, items, strict=True))
    )


def _typed_mapping(value: Any, hints: tuple[Any, Any], name: str) -> dict[Any, Any]:
    """Keys are text in TOML and JSON; a mapping by integer reads them as decimal numbers."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a table, got {value!r}")
    key_type, item_type = hints
    if key_type is int and not all(isinstance(key, str) and key.isdecimal() for key in value):
        raise ValueError(f"{name}: the keys must be numbers, got {', '.join(map(str, value))}")
    if item_type is Any:
        return dict(value)
    return {key_type(key): _typed(item, item_type, f"{name}.{key}") for key, item in value.items()}


def suggest(name: object, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known name, if any, and all known names."""
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"{f'did you mean {near[0]}? ' if near else ''}known: {', '.join(known)}"
