"""The shapes in annotations are checked wherever a test calls a function, and only there."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError

import shape_checks
from mixerloop.intervals import bootstrap_ratio
from mixerloop.model.mixers.gated_delta_net import GatedDeltaNetState
from mixerloop.ops.gated_delta_rule import gated_delta_rule
from mixerloop.ops.swiglu import swiglu
from mixerloop.transport.noise import NoiseFloor


def test_every_function_with_shapes_is_checked_in_every_module_that_knows_it():
    functions = {
        f"{name}: {scope.__name__}.{function}": value
        for name, module in sys.modules.items()
        if name.partition(".")[0] == "mixerloop"
        for scope, function, value in shape_checks.shaped_functions(module)
    }
    assert len(functions) > 50
    unchecked = [name for name, value in functions.items() if not shape_checks.is_checked(value)]
    assert unchecked == []


def test_an_argument_of_a_wrong_shape_is_rejected():
    tokens = torch.zeros(2, 5, 3, 4)
    with pytest.raises(TypeCheckError, match="parameter 'log_decay'"):
        gated_delta_rule(
            query=tokens,
            key=tokens,
            value=tokens,
            log_decay=torch.zeros(2, 5, 4),
            write_strength=torch.zeros(2, 5, 3),
        )


def test_a_result_of_a_wrong_shape_is_rejected(monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "silu", lambda gate: gate[..., None])
    with pytest.raises(TypeCheckError, match="return value"):
        swiglu(torch.ones(2, 4), form="torch")


def test_fields_of_a_wrong_shape_are_rejected():
    memory, history = torch.zeros(2, 3, 4, 4), torch.zeros(1, 3, 36)
    with pytest.raises(TypeCheckError, match="parameter 'conv_history'"):
        GatedDeltaNetState(memory, history)
    with pytest.raises(TypeCheckError, match="parameter 'share'"):
        NoiseFloor(
            wider_type="float64",
            windows=2,
            hellinger_squared=np.zeros(4),
            share=np.zeros(3),
            marginal_itr=np.zeros(4),
        )


def test_checks_can_be_left_out_and_come_back():
    with shape_checks.off(), pytest.raises(ValueError, match="numerator and a denominator"):
        bootstrap_ratio(np.ones(4), np.ones(5), over="documents")
    with pytest.raises(TypeCheckError):
        bootstrap_ratio(np.ones(4), np.ones(5), over="documents")


def test_a_users_process_checks_nothing():
    program = (
        "import sys, mixerloop.intervals as intervals;"
        "assert not hasattr(intervals.bootstrap_ratio, '__wrapped__');"
        "assert 'beartype' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
