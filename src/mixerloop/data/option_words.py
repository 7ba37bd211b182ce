"""Options written as words, such as `["--vocab-size", "2048"]`, read strictly into a dataclass.

Study files name the data of a part by the arguments of `mixerloop data prepare`.
"""

import dataclasses
import re
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from mixerloop.parsing import suggest

T = TypeVar("T")
POSITIONAL = "positional"
"""Key in a field's metadata: the field takes the words that follow no option."""


def from_words(cls: type[T], words: Sequence[str]) -> T:
    """Build a dataclass from words; an unknown option or a wrong value is an error.

    An option is followed by a value, or by any number of values if its field is a tuple.
    """
    fields = {_option(field): field for field in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]
    hints = get_type_hints(cls)
    positional = (field.name for field in fields.values() if POSITIONAL in field.metadata)
    name = without_option = next(positional, None)
    values_of: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-[0-9.]+", word):
            option, equals, value = word.partition("=")
            if option not in fields:
                raise ValueError(f"unknown option {option}; {suggest(option, fields)}")
            name = fields[option].name
            if name in values_of:
                raise ValueError(f"{option} is given twice")
            values_of[name] = [value] if equals else []
            if equals and get_origin(hints[name]) is not tuple:
                name = without_option
        elif name is None:
            raise ValueError(f"'{word}' belongs to no option; {suggest(word, fields)}")
        else:
            values_of.setdefault(name, []).append(word)
            if get_origin(hints[name]) is not tuple:
                name = without_option
    arguments = {
        field.name: _value(values_of[field.name], hints[field.name], option)
        for option, field in fields.items()
        if field.name in values_of
    }
    return cls(**arguments)


def _option(field: "dataclasses.Field[Any]") -> str:
    return "--" + field.name.rstrip("_").replace("_", "-")


def _value(words: list[str], hint: Any, option: str) -> Any:
    if get_origin(hint) is tuple:
        return tuple(_one_value(word, get_args(hint)[0], option) for word in words)
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = [choice for choice in get_args(hint) if choice is not type(None)]
    if len(words) != 1:
        raise ValueError(f"{option} needs a value")
    return _one_value(words[0], hint, option)


def _one_value(word: str, hint: type, option: str) -> Any:
    assert hint in (int, float, str, Path), f"{option} has a type that words cannot give: {hint}"
    try:
        return hint(word)
    except ValueError:
        raise ValueError(f"{option} {word}: not a valid {hint.__name__}") from None
