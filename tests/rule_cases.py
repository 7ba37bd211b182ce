"""Cases of the linear attention family: inputs, results, and how near a form is to the definition.

A member is a choice of two switches: a decay (none, one for a head, one for each channel) and an
erase key (none, given, or the own key times a write strength, as in the gated delta rule). Errors
are relative to the largest value of a tensor, never below one: outputs and gradients are sums of
terms of order one, and what cancels leaves rounding of that size.
"""

import itertools
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F

from mixerloop.ops.linear_attention import linear_attention

DECAYS = ("none", "head", "channel")
ERASES = ("none", "given", "own")  # own: a write strength in place of an erase key
MEMBERS = list(itertools.product(DECAYS, ERASES))
GATED_DELTA_RULE: dict[str, Any] = {"decay": "head", "erase": "own"}
TOKENS = ("query", "key", "value", "erase_key")
# float32: sums over chunks, and states carried over 1000 tokens; bfloat16 adds the rounding of
# outputs and gradients, 2^-9 of the value, and of the gradients' own inputs.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 2.0**-7}
TWICE = 2
"""A log decay's gradient is a sum over the whole state."""


def make_inputs(
    *,
    decay,
    erase,
    seq,
    sizes=(16, 16),
    state=True,
    decays="mixed",
    strengths="mixed",
    batch=1,
    heads=2,
    seed=0,
):
    """The arguments of a member in float64."""
    generator = torch.Generator().manual_seed(seed + seq)
    d_key, d_value = sizes

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    keys = (batch, seq, heads, d_key)
    inputs = {
        "query": F.normalize(normal(*keys), dim=-1),
        "key": F.normalize(normal(*keys), dim=-1),
        "value": normal(batch, seq, heads, d_value),
    }
    if decay != "none":
        shape = keys if decay == "channel" else keys[:3]
        block = (torch.arange(seq) % 64 < 32).view(1, seq, *[1] * (len(shape) - 2)).expand(shape)
        inputs["log_decay"] = {
            "mixed": -(uniform(*shape) ** 4) * 8,
            "brutal": torch.where(uniform(*shape) < 0.5, -60.0, 0.0).double(),
            "brutal then mild": torch.where(block, -60.0, -0.01).double(),
            "weak": -0.01 * uniform(*shape),
            "zero": torch.zeros(shape, dtype=torch.float64),
        }[decays]
    if erase == "given":
        inputs["erase_key"] = 2 * uniform(*keys) * inputs["key"]
    if erase == "own":
        drawn = uniform(*keys[:3])
        inputs["write_strength"] = {
            "mixed": drawn,
            "zero": torch.zeros_like(drawn),
            "one": torch.ones_like(drawn),
        }[strengths]
    if state:
        inputs["initial_state"] = normal(batch, heads, d_key, d_value)
    return inputs


def random_case(generator, decay="head", erase="own"):
    """Any sizes, lengths around the edges of chunks and kept states, mild to brutal decays."""

    def number(most):
        return int(torch.randint(1, most + 1, (), generator=generator))

    edges = (1, 15, 16, 17, 32, 33, 63, 64, 65, 80, 129)
    return make_inputs(
        decay=decay,
        erase=erase,
        seq=edges[number(len(edges)) - 1] if number(3) == 1 else number(36),
        sizes=(number(40), number(40)),
        state=number(2) == 1,
        decays=("mixed", "brutal", "weak")[number(3) - 1],
        batch=number(2),
        heads=number(3),
        seed=number(2**30),
    )


def stored_as(dtype, inputs):
    """Tokens in this type; what is never narrower than float32 in float32 or float64."""
    wide = torch.promote_types(dtype, torch.float32)
    return {name: x.to(dtype if name in TOKENS else wide) for name, x in inputs.items()}


def results(inputs, form, rule=linear_attention):
    """Output, state and all gradients, of a cotangent that bfloat16 holds exactly."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    output, state = rule(**leaves, form=form)
    generator = torch.Generator().manual_seed(0)
    cotangents = [
        torch.randn(x.shape, generator=generator).bfloat16().to(x.dtype) for x in (output, state)
    ]
    gradients = torch.autograd.grad([output, state], list(leaves.values()), cotangents)
    names = ["output", "state", *(f"d_{name}" for name in leaves)]
    return dict(zip(names, [output, state, *gradients], strict=True))


@lru_cache(maxsize=4)
def oracle(case, dtype):
    """Inputs that the type can hold, and the definition's results on them in float64."""
    inputs = stored_as(dtype, make_inputs(**dict(case)))
    return inputs, results({name: x.double() for name, x in inputs.items()}, "definition")


def assert_close(got, wanted, tolerance):
    assert got.keys() == wanted.keys()
    for name, reference in wanted.items():
        assert got[name].isfinite().all(), name
        error = (got[name].double() - reference).abs().max().item()
        bound = TWICE * tolerance if name == "d_log_decay" else tolerance
        assert error <= bound * max(1.0, reference.abs().max().item()), f"{name}: {error:.2e}"


def check(dtype, form, rule=linear_attention, **case):
    """Compare a form with the definition; the types of output and state are exact."""
    inputs, wanted = oracle(tuple(case.items()), dtype)
    got = results(inputs, form, rule)
    assert got["output"].dtype == dtype
    assert got["state"].dtype == torch.promote_types(dtype, torch.float32)
    assert_close(got, wanted, TOLERANCE[dtype])


def largest_error(inputs, dtype):
    """Of the native form's outputs and gradients, relative to the largest value, at least one."""
    stored = stored_as(dtype, inputs)
    wanted = results({name: x.double() for name, x in stored.items()}, "definition")
    got = results(stored, "native")
    return max(
        ((got[name].double() - right).abs().max() / right.abs().max().clamp_min(1)).item()
        for name, right in wanted.items()
    )
