import pytest
import torch

import needs
from mixerloop.config import Form
from mixerloop.ops.swiglu import swiglu

pytestmark = needs.KERNEL.mark
TOLERANCE = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2.0**-8}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(1, 2), (3, 7, 34), (2, 5, 64), (40, 1536)], ids=str)
def test_native_matches_torch(instruction_set, shape, dtype):
    found = []
    x = (torch.randn(shape, dtype=torch.float64) * 4).to(dtype)
    d_y = torch.randn(*shape[:-1], shape[-1] // 2, dtype=torch.float64).to(dtype)
    kinds: dict[Form, torch.dtype] = {"native": dtype, "torch": torch.float64}
    for form, kind in kinds.items():
        gate_up = x.to(kind).requires_grad_()
        y = swiglu(gate_up, form=form)
        found.append((y, *torch.autograd.grad(y, gate_up, d_y.to(kind))))
    for one, other in zip(*found, strict=True):
        assert one.dtype == dtype
        bound = TOLERANCE[dtype] * max(1.0, other.abs().max().item())
        assert (one.double() - other).abs().max() <= bound


def test_without_gradients_it_is_the_same_bit_for_bit():
    """That way goes past the dispatcher."""
    x = torch.randn(3, 4, 40, requires_grad=True)
    whole = swiglu(x, form="native")
    assert whole.requires_grad
    with torch.no_grad():
        assert torch.equal(swiglu(x, form="native"), whole)


def test_a_view_is_read_as_what_it_is():
    x = torch.randn(6, 40, dtype=torch.float64)
    one = swiglu(x[:, ::2], form="native")
    other = swiglu(x[:, ::2], form="torch")
    torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


@pytest.mark.parametrize("form", ["native", "torch"])
def test_an_odd_width_is_refused(form):
    with pytest.raises(ValueError, match="gate and up must be of one width, got 7 for both"):
        swiglu(torch.ones(3, 7), form=form)


def test_torch_knows_the_operator():
    x = torch.randn(5, 12, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(
        torch.ops.mixerloop.swiglu.default,
        (x,),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
