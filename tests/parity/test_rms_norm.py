import warnings
from typing import Any

import pytest
import torch

import needs
from mixerloop.config import Form
from mixerloop.ops.rms_norm import rms_norm

pytestmark = needs.KERNEL.mark
TOLERANCE = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2.0**-8}
EPS = 1e-5


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("shape", "scale"),
    [((1, 3), 1.0), ((2, 1, 7), 100.0), ((3, 5, 20), 1e-4), ((41, 288), 1.0)],
    ids=str,
)
def test_native_matches_torch(instruction_set, shape, scale, dtype):
    """What comes out may be bfloat16; what goes in is float32 or wider, and so is its gradient."""
    wide = torch.promote_types(dtype, torch.float32)
    x = (torch.randn(shape, dtype=torch.float64) * scale).to(wide)
    weight = torch.randn(shape[-1], dtype=torch.float64).to(wide)
    d_y = torch.randn(shape, dtype=torch.float64).to(dtype)
    found = []
    kinds: dict[Form, torch.dtype] = {"native": wide, "torch": torch.float64}
    for form, kind in kinds.items():
        out = dtype if form == "native" else torch.float64
        leaves = [tensor.to(kind).requires_grad_() for tensor in (x, weight)]
        y = rms_norm(*leaves, eps=EPS, form=form, dtype=out)
        assert y.dtype == out
        found.append((y, *torch.autograd.grad(y, leaves, d_y.to(out))))
    for one, other in zip(*found, strict=True):
        assert (one.double() - other).abs().max() <= TOLERANCE[dtype] * other.abs().max()


def test_without_gradients_it_is_the_same_bit_for_bit():
    """That way goes past the dispatcher."""
    x, weight = torch.randn(3, 4, 40, requires_grad=True), torch.randn(40)
    whole = rms_norm(x, weight, eps=EPS, form="native")
    assert whole.requires_grad
    with torch.no_grad():
        assert torch.equal(rms_norm(x, weight, eps=EPS, form="native"), whole)
        one = rms_norm(x[:, 1:2], weight, eps=EPS, form="native")
    assert torch.equal(whole[:, 1:2], one)


def test_those_who_watch_see_the_operator():
    from torch.fx.experimental.proxy_tensor import make_fx

    def normed(x):
        return rms_norm(x, weight, eps=EPS, form="native")

    x, weight = torch.randn(3, 5, 40), torch.randn(40)
    with torch.no_grad():
        wanted = normed(x)
        assert torch.equal(torch.func.vmap(normed)(x), wanted)
        other = torch.randn(3, 5, 40)
        with warnings.catch_warnings():  # that it is deprecated, and that sizes are constants
            warnings.simplefilter("ignore")
            scripted = torch.jit.trace(normed, x)
        traced: list[Any] = [scripted, make_fx(normed)(x)]
        for one in traced:
            assert torch.equal(one(other), normed(other))


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize("form", ["native", "torch"])
def test_a_weight_of_another_width_is_refused(form):
    with pytest.raises(ValueError, match=r"a weight of \(8,\) does not fit \(3, 32\)"):
        rms_norm(torch.ones(3, 32), torch.ones(8), eps=EPS, form=form)


def test_torch_knows_the_operator():
    x = torch.randn(5, 12, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(12, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(
        torch.ops.mixerloop.rms_norm.default,
        (x, weight, EPS, torch.float64),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
