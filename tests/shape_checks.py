"""Array shapes are checked in the process that runs the tests, and nowhere else.

jaxtyping and beartype check a function whose annotations name shapes: its arguments, its result,
and the fields of dataclasses and named tuples. In a test they check the first call with arguments
of some types and shapes; to check every call took two thirds of the time of the tests that make
many small ones. jaxtyping's own import hook would also check the helpers in the same modules, whose
plain types pyright checks.

Verbs that a test runs through `command_line` are not checked, because they run as a user runs them.
"""

import contextlib
import functools
import importlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, get_args

import jaxtyping
import numpy as np
import torch
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, jaxtyped

SOURCE = Path(__file__).parents[1] / "src"
MARK = "shapes_are_checked"
CONF = BeartypeConf(is_pep484_tower=True)  # an int is a float, as for pyright
_checked_calls: set[Any] = set()
"""Functions with the types and shapes of their arguments, of the calls that were checked."""


def shaped_modules() -> list[str]:
    """Names of the modules whose source imports jaxtyping."""
    return sorted(
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for path in (SOURCE / "mixerloop").rglob("*.py")
        if "from jaxtyping import" in path.read_text(encoding="utf-8")
    )


def install() -> None:
    """Import all modules that annotate shapes, with checks on."""
    names = shaped_modules()
    early = [name for name in names if name in sys.modules]
    assert not early, f"imported before their shapes could be checked: {', '.join(early)}"
    finder = _CheckedFinder(names)
    sys.meta_path.insert(0, finder)
    for name in names:
        importlib.import_module(name)
    sys.meta_path.remove(finder)


@contextlib.contextmanager
def off() -> Iterator[None]:
    """Leave the checks out, as in a user's process."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def check_again() -> None:
    """Check the next call of every function, as at the beginning of a test."""
    _checked_calls.clear()


def shaped_functions(scope: ModuleType | type) -> Iterator[tuple[ModuleType | type, str, Any]]:
    """Functions and methods with shapes in their annotations, each with its scope and name."""
    for name, value in list(vars(scope).items()):
        if isinstance(value, type) and value.__module__ == getattr(scope, "__name__", None):
            yield from shaped_functions(value)
        elif _is_shaped(value):
            yield scope, name, value


class _CheckedFinder(MetaPathFinder):
    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self._names else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _CheckedLoader(spec.loader.name, spec.loader.path)
        return spec


class _CheckedLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        """Put the checks on before another module can import a function without them."""
        super().exec_module(module)
        for scope, name, function in shaped_functions(module):
            if not is_checked(function):  # imported from a module that was checked earlier
                setattr(scope, name, _checked(function))


def is_checked(function: Any) -> bool:
    """Whether calls of a function, or of a property's getter, are checked."""
    return hasattr(_function(function), MARK)


def _checked(function: Any) -> Any:
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_checked(function.__func__))
    if isinstance(function, property):
        return function.getter(_checked(function.fget))
    checking = jaxtyped(function, typechecker=_check)

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **keywords)
        shapes = (
            checking,
            tuple(map(_shape, args)),
            tuple(keywords),
            *map(_shape, keywords.values()),
        )
        if shapes in _checked_calls:
            return function(*args, **keywords)
        result = checking(*args, **keywords)
        _checked_calls.add(shapes)
        return result

    setattr(call, MARK, True)
    return call


def _shape(value: Any) -> Any:
    """What a check can depend on: type and shape of an array, the small values that name sizes."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return type(value), value.dtype, value.shape
    if isinstance(value, tuple | list):
        return type(value), *map(_shape, value)
    if value is None or isinstance(value, int | str):
        return value
    return type(value)


def _check(function: Any) -> Any:
    """Let beartype check a stand-in that jaxtyping makes for a function.

    jaxtyping calls a stand-in with the arguments before the function runs, and a stand-in with
    the arguments and the result afterwards. The latter checks the result only: the arguments have
    been checked, and the sizes of their axes are remembered between the calls.
    """
    result = function.__annotations__.get("return", Any)
    if result is not Any:
        function.__annotations__ = {"return": result}
    return beartype(conf=CONF)(function)


def _is_shaped(value: Any) -> bool:
    function = _function(value)
    return isinstance(function, FunctionType) and any(
        _names_shapes(hint) for hint in function.__annotations__.values()
    )


def _function(value: Any) -> Any:
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def _names_shapes(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(_names_shapes(part) for part in get_args(hint))
