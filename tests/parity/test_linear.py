"""Products of a few rows: the native kernel beside a product in float64."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import needs
from mixerloop.model.projection import Projection
from mixerloop.ops import linear as module
from mixerloop.ops.linear import MOST_ROWS, linear

pytestmark = needs.KERNEL.mark
SMALLEST = module.LEAST_WEIGHTS
TOLERANCE = {torch.float64: 1e-14, torch.float32: 1e-6}


@pytest.fixture(autouse=True)
def _small_weights(monkeypatch):
    """The kernel computes the small products of these tests, for which torch would be faster."""
    monkeypatch.setattr(module, "LEAST_WEIGHTS", 1)


@pytest.fixture(name="kernel_calls")
def _kernel_calls(monkeypatch) -> list[tuple[int, ...]]:
    """The shapes that reach the kernel."""
    calls: list[tuple[int, ...]] = []
    run = module._row_product

    def counted(x, weight, bias):
        calls.append(tuple(x.shape))
        return run(x, weight, bias)

    monkeypatch.setattr(module, "_row_product", counted)
    return calls


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("rows", "d_input", "d_output", "has_bias"),
    [
        *(((1,), 1, 1, False), ((1, 1), 7, 5, True), ((2, 1), 64, 16, False), ((), 67, 17, True)),
        *(((MOST_ROWS,), 67, 17, True), ((1,), 576, 1000, False), ((3,), 576, 1000, True)),
    ],
    ids=str,
)
def test_few_rows_match_float64(
    instruction_set, kernel_calls, rows, d_input, d_output, has_bias, dtype
):
    x = torch.randn(*rows, d_input, dtype=torch.float64).to(dtype)
    weight = torch.randn(d_output, d_input, dtype=torch.float64).to(dtype)
    bias = torch.randn(d_output, dtype=torch.float64).to(dtype) if has_bias else None
    y = linear(x, weight, bias, form="native")
    assert kernel_calls == [(*rows, d_input)]
    assert y.shape == (*rows, d_output)
    assert y.dtype == dtype
    wanted = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    size = F.linear(x.double().abs(), weight.double().abs()).max()
    assert (y.double() - wanted).abs().max() <= TOLERANCE[dtype] * size


def test_a_row_does_not_depend_on_the_rows_beside_it():
    x, weight = torch.randn(MOST_ROWS, 100), torch.randn(40, 100)
    whole = linear(x, weight, form="native")
    for number in range(MOST_ROWS):
        assert torch.equal(linear(x[number : number + 1], weight, form="native")[0], whole[number])


def test_tensors_that_are_not_contiguous_are_read_right(kernel_calls):
    x, weight, turned = torch.randn(100, 2).t(), torch.randn(40, 100), torch.randn(100, 40).t()
    torch.testing.assert_close(linear(x, weight, form="native"), x @ weight.t())
    assert kernel_calls == [(2, 100)]
    torch.testing.assert_close(linear(x, turned, form="native"), x @ turned.t())
    assert kernel_calls == [(2, 100)]  # a weight is not copied for every token


def test_small_weights_are_left_to_torch(kernel_calls, monkeypatch):
    monkeypatch.setattr(module, "LEAST_WEIGHTS", SMALLEST)
    linear(torch.ones(1, 256), torch.ones(SMALLEST // 256 - 1, 256), form="native")
    assert kernel_calls == []
    linear(torch.ones(1, 256), torch.ones(SMALLEST // 256, 256), form="native")
    assert kernel_calls == [(1, 256)]


@pytest.mark.slow
@needs.PROC.mark
def test_products_of_different_sizes_keep_the_threads():
    """OpenMP ends threads that a smaller team leaves over; the next larger team starts others."""
    code = """
import os, torch
from mixerloop.ops import linear as module
module.LEAST_WEIGHTS = 1
torch.set_num_threads(4)
wide, narrow = torch.ones(640, 32), torch.ones(32, 640)
def both():
    module.linear(module.linear(torch.ones(1, 32), wide, form="native"), narrow, form="native")
    return set(os.listdir("/proc/self/task"))
threads = both()
assert len(threads) >= 4
assert all(both() == threads for _ in range(20))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.usefixtures("shapes_unchecked")  # a check cannot hash a symbolic size
def test_an_exported_model_takes_any_number_of_rows():
    layer = Projection(12, 9, form="native")
    rows = torch.export.Dim("rows", min=1, max=64)
    with torch.no_grad():
        exported = torch.export.export(layer, (torch.ones(8, 12),), dynamic_shapes=({0: rows},))
        x = torch.randn(2, 12)
        torch.testing.assert_close(exported.module()(x), layer(x))


@pytest.mark.usefixtures("shapes_unchecked")
def test_tensors_that_only_torch_can_read_are_left_to_torch(kernel_calls):
    x, weight = torch.ones(1, 6), torch.ones(8, 6)
    assert linear(x, weight[0], form="native").shape == (1,)
    assert torch.equal(linear(x, weight, torch.ones(1), form="native"), torch.full((1, 8), 7.0))
    zeros = torch.ops.aten._efficientzerotensor([1, 6])
    assert torch.equal(linear(zeros, weight, form="native"), torch.zeros(1, 8))
    assert linear(x, weight.to_sparse(), form="native").shape == (1, 8)
    assert kernel_calls == []


def test_a_number_that_is_not_finite_stays_in_its_row_and_output():
    x, weight = torch.randn(2, 70), torch.randn(20, 70)
    x[1, 69], weight[3, 0] = float("nan"), float("inf")
    y = linear(x, weight, form="native")
    assert y[1].isnan().all()
    assert y[0].isfinite().logical_not().nonzero().flatten().tolist() == [3]


def test_torch_computes_where_the_kernel_may_not(kernel_calls):
    weight = torch.randn(8, 6, requires_grad=True)
    one, many = torch.randn(1, 6), torch.randn(MOST_ROWS + 1, 6)
    linear(one, weight, form="native").sum().backward()
    assert weight.grad is not None
    with torch.no_grad():
        linear(many, weight, form="native")
        linear(one, weight, form="torch")
        linear(one.bfloat16(), weight.bfloat16(), form="native")
        with torch.autocast("cpu", torch.bfloat16):
            assert linear(one, weight, form="native").dtype == torch.bfloat16
        with pytest.raises(RuntimeError):
            linear(one.double(), weight, form="native")
        torch.func.vmap(lambda x: linear(x, weight, form="native"))(many)
        assert kernel_calls == []
        linear(one, weight, form="native")
    assert kernel_calls == [(1, 6)]


def test_a_bias_is_trained_also_where_its_weight_is_frozen():
    bias = torch.zeros(8, requires_grad=True)
    linear(torch.ones(1, 6), torch.ones(8, 6), bias, form="native").sum().backward()
    assert bias.grad is not None
    assert torch.equal(bias.grad, torch.ones(8))


def test_an_input_without_numbers_is_left_to_torch(kernel_calls):
    assert linear(torch.ones(0, 6), torch.ones(8, 6), form="native").shape == (0, 8)
    assert torch.equal(linear(torch.ones(1, 0), torch.ones(8, 0), form="native"), torch.zeros(1, 8))
    assert kernel_calls == []


@pytest.mark.usefixtures("shapes_unchecked")
def test_tensors_that_do_not_fit_are_rejected():
    x, weight = torch.ones(1, 6), torch.ones(8, 6)
    with pytest.raises(RuntimeError, match="size of the tensor"):
        linear(x, weight, torch.ones(3), form="native")
    with pytest.raises(RuntimeError):
        linear(x, weight, torch.ones(8, dtype=torch.float64), form="native")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        linear(torch.ones(1, 5), weight, form="native")


def test_a_projection_has_the_weights_of_a_linear_layer(kernel_calls):
    ours, theirs = Projection(12, 9, bias=True, form="native"), torch.nn.Linear(12, 9)
    ours.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        for rows in (1, 50):
            x = torch.randn(rows, 12)
            torch.testing.assert_close(ours(x), theirs(x))
    assert kernel_calls == [(1, 12)]
