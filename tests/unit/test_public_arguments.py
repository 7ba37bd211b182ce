"""Every argument of every public function is of its annotated type, or rejected by name."""

import importlib
import inspect
import operator
import re
from typing import Any

import numpy as np
import pytest
import torch

import mixerloop
from mixerloop.config import load, preset
from mixerloop.data.windows import Draw
from mixerloop.interop.loading import open_subject
from mixerloop.model.initialization import meta_model
from mixerloop.ops.gated_delta_rule import gated_delta_rule
from mixerloop.ops.linear_attention import bind_linear_attention, linear_attention
from mixerloop.parsing import checked
from mixerloop.schedule import full_loop

WRONG: tuple[Any, ...] = (object(), [object()], {"train": object()}, b"bytes")
"""Values that are right for no argument; the functions themselves are not run."""
PLAIN = {
    **{"prompt": "text", "size": "nano", "paths": ["a", "b"], "file": "quick", "seed": 0},
    **{"text": "full_loop", "schedule": full_loop(1, 2), "split": "train", "context": 8},
    **dict.fromkeys(("num_layers", "num_passes", "num_prelude", "num_core", "num_coda"), 1),
    **{"num": 1, "texts": [], "ids": [], "draw": Draw(num=1, num_positions=1, seed=0)},
}
"""Right values of required arguments; the others name a folder."""
DOCUMENTED = (
    *("catalog:config_text", "catalog:study_text", "data.prepared:open_prepared"),
    *(f"benchmarking.{name}_speed:bench_{name}" for name in ("core", "decode", "operator")),
    *(f"benchmarking.{name}_speed:bench_{name}" for name in ("prefill", "transport")),
    "benchmarking.training_speed:bench_train",
    *(f"benchmarking.settings:{name}Settings" for name in ("Operator", "Prefill", "Decode")),
    *(f"benchmarking.settings:{name}Settings" for name in ("Train", "Transport", "Core")),
    *(f"data.task_folder:TaskFolder.{name}" for name in ("windows", "held_out", "draw")),
    *(f"data.token_folder:TokenFolder.{name}" for name in ("windows", "held_out", "draw")),
    *(f"data.tokenizer:Tokenizer.{name}" for name in ("encode", "encode_all", "decode")),
    *("data.tokenizer_files:open_tokenizer", "interop.conversion:export_run"),
    *("interop.conversion:import_run", "model.decoding:DecodeState.fork", "model.decoding:start"),
    *("model.initialization:fresh_model", "notation:notation", "notation:resolve"),
    *(f"schedule:{name}" for name in ("no_loop", "full_loop", "prelude_core_coda")),
    *("studies.overview:study_status", "studies.running:plan_study"),
    *("training.fresh_run:init_run", "training.status:list_runs"),
    "transport.routing:measure_routing",
)
"""Functions of modules that the pages of the documentation name."""


def function_of(name: str) -> Any:
    """A name of `mixerloop`, or of one of its modules."""
    module, _, path = name.rpartition(":")
    return operator.attrgetter(path)(importlib.import_module(f"mixerloop.{module}".rstrip(".")))


PUBLIC = [
    (name, parameter)
    for name in (*mixerloop.__all__, *DOCUMENTED)
    if callable(function := function_of(name))
    for parameter in inspect.signature(function).parameters
    if parameter != "self"
]


def required(function: Any, hops_run) -> dict[str, Any]:
    """Right values of the arguments that have no default."""
    made = {
        "subject": lambda: open_subject(hops_run, keep=False),
        "config": lambda: load("nano-hops"),
        "model": lambda: meta_model(preset("nano")),
    }
    if function.__name__ == "fresh_model":
        made["config"] = lambda: preset("nano")
    return {
        name: made[name]() if name in made else PLAIN.get(name, "folder")
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty
    }


def test_there_are_public_arguments():
    assert len(PUBLIC) > 80


@pytest.mark.parametrize(("name", "argument"), PUBLIC)
def test_an_argument_of_a_wrong_type_is_named(hops_run, name, argument):
    function = function_of(name)
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


def tensors(*, erases: bool = False) -> dict[str, Any]:
    """The tensors of an operator over a token."""
    made = {name: torch.randn(1, 1, 2, 4) for name in ("query", "key", "value")}
    if erases:
        made |= {"log_decay": -torch.rand(1, 1, 2), "write_strength": torch.rand(1, 1, 2)}
    return made


NO_TENSORS: tuple[Any, ...] = (np.zeros((1, 1, 2, 4), np.float32), "text", 0.5, [1.0])
SPARSE = torch.randn(1, 1, 2, 4).to_sparse()
OPERATORS = [
    (function, name, form)
    for function, forms in (
        (linear_attention, ("auto", "native", "torch", "definition")),
        (gated_delta_rule, ("auto", "native", "torch", "definition")),
        (bind_linear_attention, (None,)),
    )
    for name, parameter in inspect.signature(function).parameters.items()
    if "Tensor" in str(parameter.annotation)
    for form in forms
]


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize(("function", "argument", "form"), OPERATORS)
def test_an_operator_names_an_argument_that_is_no_dense_tensor(function, argument, form):
    right = tensors(erases=function is gated_delta_rule) | ({} if form is None else {"form": form})
    if function is not gated_delta_rule and argument == "write_strength":
        right.pop("erase_key", None)
    is_required = argument in right
    for value in (*NO_TENSORS, SPARSE, *([None] if is_required else [])):
        with pytest.raises(TypeError, match=rf"^{argument} must be a (dense )?tensor, got "):
            function(**{**right, argument: value})


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize("function", [linear_attention, gated_delta_rule])
def test_an_operator_names_a_tensor_on_another_device(function):
    right = tensors(erases=function is gated_delta_rule)
    with pytest.raises(ValueError, match="query is on meta, and value on cpu"):
        function(**{**right, "query": right["query"].to("meta")})
