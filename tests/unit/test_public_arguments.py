"""Every argument of every public function is of its annotated type, or rejected by name."""

import inspect
import re
from typing import Any

import numpy as np
import pytest

import mixerloop
from mixerloop.config import load
from mixerloop.interop.loading import open_subject
from mixerloop.parsing import checked

WRONG: tuple[Any, ...] = (object(), [object()], {"train": object()}, b"bytes")
"""Values that are right for no argument; the functions themselves are not run."""
PLAIN = {"prompt": "text", "size": "nano", "paths": ["a", "b"], "file": "quick"}
"""Right values of required arguments; the others name a folder."""


PUBLIC = [
    (name, parameter)
    for name in mixerloop.__all__
    if callable(function := getattr(mixerloop, name))
    for parameter in inspect.signature(function).parameters
]


def required(function: Any, hops_run) -> dict[str, Any]:
    """Right values of the arguments that have no default."""
    made = {
        "subject": lambda: open_subject(hops_run, keep=False),
        "config": lambda: load("nano-hops"),
    }
    return {
        name: made[name]() if name in made else PLAIN.get(name, "folder")
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty
    }


def test_there_are_public_arguments():
    assert len(PUBLIC) > 80


@pytest.mark.parametrize(("name", "argument"), PUBLIC)
def test_an_argument_of_a_wrong_type_is_named(hops_run, name, argument):
    function = getattr(mixerloop, name)
    right = required(function, hops_run)
    hint = str(inspect.signature(function).parameters[argument].annotation)
    numbers = [] if re.search("float|bool", hint) else [2.5, True]
    for value in (*WRONG, *numbers):
        with pytest.raises(TypeError, match=rf"^{argument} must be \w.*, got .*$"):
            function(**{**right, argument: value})


@checked
def example(number: int = 0, *, share: float = 0.0, several: tuple[int, ...] = ()) -> Any:
    """A public function."""
    return number, share, several


def test_numbers_of_numpy_become_pythons_and_lists_tuples():
    numbers: Any = np.int64(3), np.float32(0.5), [np.int32(1), 2]
    given = example(numbers[0], share=numbers[1], several=numbers[2])
    assert given == (3, 0.5, (1, 2))
    assert [type(value) for value in (*given[:2], *given[2])] == [int, float, int, int]
    assert example(share=1) == (0, 1, ())


def test_a_text_is_no_list_of_texts():
    with pytest.raises(TypeError, match="paths must be a list of Path or str, got 'runs/a'"):
        mixerloop.compare_runs("runs/a")


@pytest.mark.parametrize("keys", [{}, {"numbr": 3}])
def test_a_call_that_does_not_fit_is_pythons_own_error(keys):
    with pytest.raises(TypeError, match=r"train\(\) (missing|got an unexpected)"):
        mixerloop.train(**keys)
