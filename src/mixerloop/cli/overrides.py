"""Options for every key of a config: `--train.seed 7` takes the place of what the file says."""

import ast
import dataclasses
import inspect
import textwrap
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import tyro

from mixerloop.config import PRESETS, DataConfig, ModelConfig, Tables, TrainConfig

TRUTH = {"true": True, "false": False}
SECTIONS: dict[str, type] = {"model": ModelConfig, "data": DataConfig, "train": TrainConfig}


def _options() -> list[tuple[str, Any, Any]]:
    """A field for each key; what a key means is what its docstring says."""
    options = [_option("model", "preset", str, f"{', '.join(PRESETS)}: fills in the sizes.", "")]
    for section, cls in SECTIONS.items():
        hints, helps = get_type_hints(cls), _docstrings(cls)
        for field in dataclasses.fields(cls):
            named = field.default not in (dataclasses.MISSING, None)
            hint = f"(default: {field.default})" if named else ""
            options.append(_option(section, field.name, hints[field.name], helps[field.name], hint))
    return options


def _option(section: str, key: str, kind: Any, text: str, hint: str) -> tuple[str, Any, Any]:
    argument = tyro.conf.arg(name=f"{section}.{key}", help=text, help_behavior_hint=hint)
    kind = Literal["true", "false"] if kind is bool else kind
    return f"{section}__{key}", Annotated[kind | None, argument], dataclasses.field(default=None)


def _docstrings(cls: type) -> dict[str, str]:
    """The string under each field of a dataclass."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[field.target.id] = str(after.value.value)
    return found


if TYPE_CHECKING:

    class Overrides:
        """One optional field for each key of each section."""
else:
    Overrides = dataclasses.make_dataclass("Overrides", _options(), frozen=True, kw_only=True)


def given(options: Overrides) -> Tables:
    """The keys that were given, by section."""
    tables: Tables = {}
    for name, value in vars(options).items():
        if value is not None:
            section, _, key = name.partition("__")
            is_truth = get_type_hints(SECTIONS[section]).get(key) is bool
            tables.setdefault(section, {})[key] = TRUTH[value] if is_truth else value
    return tables
