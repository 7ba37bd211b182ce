"""An option for every key of a config: `--train.seed 7` overrides the key in the file."""

import ast
import dataclasses
import inspect
import textwrap
import types
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from mixerloop.config import PRESETS, DataConfig, ModelConfig, Tables, TrainConfig, option_names
from mixerloop.kinds import KINDS, OBJECTIVES, ObjectiveConfig

TRUTH = {"true": True, "false": False}
_TRUTHS: set[str] = set()
"""The fields of boolean keys."""
_PAIRS: dict[str, type] = {}
"""The fields of keys that are lists of pairs, with the type of the first of a pair."""
SECTIONS: dict[str, type] = {"model": ModelConfig, "data": DataConfig, "train": TrainConfig}


def _options() -> list[tuple[str, Any, Any]]:
    """A field for each key; the help of a key is its docstring."""
    options = [_option("model", "preset", str, f"{', '.join(PRESETS)}: fills in the sizes.", "")]
    for section, cls in SECTIONS.items():
        if section == "model":
            options += [*_fields(section, cls, without={"options"}), *_kind_options()]
        else:
            options += _fields(section, cls, without={"objective"})
    return [*options, *_objective_options()]


def _objective_options() -> list[tuple[str, Any, Any]]:
    """The kind of objective, and the options of every objective."""
    options = _fields("train.objective", ObjectiveConfig, without={"options"})
    for kind in OBJECTIVES.values():
        options += _fields("train.objective", kind.options)
    return options


def _kind_options() -> list[tuple[str, Any, Any]]:
    """The options of every kind: `model.OPTION`, and `model.KIND.OPTION` where kinds share a name.

    The option of a pass rule is `model.RULE`, and its value is the unit.
    """
    shared = Counter(name for kind in KINDS for name in option_names(kind))
    options, listed = [], set[str]()
    for kind in KINDS.values():
        if kind.role == "pass rule":
            text = f"{kind.name}: {_docstrings(kind.options).get('unit', 'its unit')}"
            options.append(_option("model", kind.name, str, text, ""))
            continue
        names = set(option_names(kind.name))
        options += _fields("model", kind.options, without=listed & names)
        options += _fields(
            f"model.{kind.name}",
            kind.options,
            without={name for name in names if shared[name] == 1},
        )
        listed |= names
    return options


def _fields(
    section: str, cls: type, *, without: Collection[str] = ()
) -> list[tuple[str, Any, Any]]:
    hints, helps = get_type_hints(cls), _docstrings(cls)
    options = []
    for field in dataclasses.fields(cls):
        if field.name not in without:
            named = field.default not in (dataclasses.MISSING, None, ())
            default = " ".join(field.default) if isinstance(field.default, tuple) else field.default
            hint = f"(default: {default})" if named else ""
            text = helps.get(field.name, "")
            options.append(_option(section, field.name, hints[field.name], text, hint))
    return options


def _option(section: str, key: str, kind: Any, text: str, hint: str) -> tuple[str, Any, Any]:
    argument = tyro.conf.arg(name=f"{section}.{key}", help=text, help_behavior_hint=hint)
    name = f"{section}.{key}".replace(".", "__")
    if get_origin(kind) is types.UnionType and str in get_args(kind):
        kind = str  # a list is given in a config
    if get_origin(first := next(iter(get_args(kind)), None)) is tuple:
        _PAIRS[name] = get_args(first)[0]
        kind = tuple[str, ...]
    if kind is bool:
        _TRUTHS.add(name)
        kind = Literal["true", "false"]
    return name, Annotated[kind | None, argument], dataclasses.field(default=None)


def _docstrings(cls: type) -> dict[str, str]:
    """The string under each field of a dataclass and of its base classes."""
    docstrings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            docstrings |= _own_docstrings(base)
    return docstrings


def _own_docstrings(cls: type) -> dict[str, str]:
    try:
        source = inspect.getsource(cls)
    except OSError:  # of a class from a notebook
        return {}
    (body,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(body, ast.ClassDef)
    docstrings = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            docstrings[field.target.id] = " ".join(str(after.value.value).split())
    return docstrings


if TYPE_CHECKING:

    class Overrides:
        """One optional field for each key of each section."""
else:
    Overrides = dataclasses.make_dataclass("Overrides", _options(), frozen=True, kw_only=True)


def given(options: Overrides) -> Tables:
    """The keys that the command line sets, by section."""
    tables: Tables = {}
    for name, value in vars(options).items():
        if value is not None:
            section, *tables_between, key = name.split("__")
            table = tables.setdefault(section, {})
            for between in tables_between:
                table = table.setdefault(between, {})
            table[key] = _as_in_toml(name, value)
    return tables


def _as_in_toml(name: str, value: Any) -> Any:
    if name in _TRUTHS:
        return TRUTH[value]
    if name in _PAIRS:
        return _pairs(name, value)
    return list(value) if isinstance(value, tuple) else value


def _pairs(name: str, words: tuple[str, ...]) -> list[list[Any]]:
    """Words in turn, the first of each pair as a number."""
    try:
        firsts = list(map(_PAIRS[name], words[::2]))
    except ValueError:
        firsts = []
    if len(words) % 2 or not firsts:
        option = f"--{name.replace('__', '.').replace('_', '-')}"
        raise ValueError(
            f"{option}: give pairs of a number and text, such as 0 no_loop 0.7 full_loop"
        )
    return [list(pair) for pair in zip(firsts, words[1::2], strict=True)]
