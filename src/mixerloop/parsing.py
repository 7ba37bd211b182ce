"""Values from outside: tables become dataclasses, and arguments of public functions are checked.

Errors name an unknown key and the nearest known key, or the argument and the type it must have.
"""

import dataclasses
import difflib
import functools
import inspect
import numbers
import os
import re
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from typeguard import TypeCheckError, check_type

from mixerloop.messages import one_line

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


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
    """The first option that fits; where all options are tables, the error is the first option's."""
    if value is None and type(None) in options:
        return None
    options = tuple(option for option in options if option is not type(None))
    if len(options) == 1:
        return _typed(value, options[0], name)
    errors = []
    for option in options:
        try:
            return _typed(value, option, name)
        except ValueError as error:
            errors.append(error)
    if all(map(dataclasses.is_dataclass, options)):
        raise errors[0]
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


def name_and_numbers(text: str, *, such_as: str = "") -> tuple[str, tuple[float, ...]]:
    """The parts of a text such as `geometric(0.3, 4)`; a name alone has no numbers."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*", text)
    if match is None:
        raise ValueError(f"'{text}' is not a name{f', such as {such_as}' if such_as else ''}")
    name, inside = match.groups()
    try:
        numbers = tuple(float(part) for part in (inside or "").split(",") if part.strip())
    except ValueError:
        raise ValueError(f"'{text}': {inside!r} are not numbers") from None
    return name, numbers


def checked(function: F) -> F:
    """Reject an argument that is not of its annotated type; for public functions and dataclasses.

    Text is no list of texts, True is no number and 2.5 is no whole number. A number of numpy
    becomes Python's, and a list becomes a tuple where the annotation says tuple. The choices of a
    Literal are left to the function.
    """
    made: Any = function
    if isinstance(function, type):
        made.__init__ = checked(made.__init__)
        return made
    signature = inspect.signature(function)
    hints_of = functools.cache(get_type_hints)

    @functools.wraps(function)
    def call(*positional: Any, **keywords: Any) -> Any:
        try:
            bound = signature.bind(*positional, **keywords)
        except TypeError:
            return function(*positional, **keywords)  # which raises Python's own error
        hints = hints_of(function)
        for name, value in bound.arguments.items():
            if name in hints:
                bound.arguments[name] = _argument(value, hints[name], name)
        return function(*bound.args, **bound.kwargs)

    return cast(F, call)


def _argument(value: Any, hint: Any, name: str) -> Any:
    if not _is_a(value, hint):
        raise TypeError(f"{name} must be {_wanted(hint)}, got {one_line(repr(value), most=80)}")
    if any(get_origin(option) is tuple for option in (hint, *get_args(hint))) and not (
        value is None or isinstance(value, str)
    ):
        return tuple(map(_python_number, value))
    return _python_number(value)


def _python_number(value: Any) -> Any:
    for kind, number in ((int, numbers.Integral), (float, numbers.Real)):
        if isinstance(value, number):
            return value if isinstance(value, kind) else kind(value)  # pyright: ignore
    return value


def _is_a(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type, with all its items."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_is_a(value, option) for option in inner)
    if origin is Literal:
        return isinstance(value, tuple(map(type, inner)))
    if hint in _NUMBERS:
        return isinstance(value, _NUMBERS[hint]) and not isinstance(value, bool)
    if hint is Path:
        return isinstance(value, os.PathLike)
    if origin is Callable:
        return callable(value)
    if origin is dict:
        return isinstance(value, dict) and all(_is_a(item, inner[1]) for item in value.values())
    if inner:
        wanted = Sequence if origin is tuple else origin
        is_list = isinstance(value, wanted) and not isinstance(value, str | bytes)
        return is_list and all(_is_a(item, inner[0]) for item in value)
    return isinstance(value, hint)


_NUMBERS = {int: numbers.Integral, float: numbers.Real}


def _wanted(hint: Any) -> str:
    """The name of an annotated type in an error."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_wanted, inner))
    if origin is Literal:
        return "text"
    if origin is Callable:
        return "a function"
    if origin is dict:
        return "dict" if inner[1] is Any else f"a dict of {_wanted(inner[1])}"
    if inner:
        return f"a list of {_wanted(inner[0])}"
    return "None" if hint is types.NoneType else hint.__name__


def suggest(name: object, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known name, if any, and all known names."""
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"{f'did you mean {near[0]}? ' if near else ''}known: {', '.join(known)}"
