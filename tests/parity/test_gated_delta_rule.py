"""Every form of the gated delta rule against the float64 definition.

Errors are taken relative to the largest value of a tensor, and never below one: outputs and
gradients are sums of terms of order one, and what cancels leaves rounding of that size behind.
"""

import inspect
import itertools
from functools import lru_cache

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import needs
from mixerloop.ops import chunked
from mixerloop.ops.gated_delta_rule import choose_form, gated_delta_rule

FAST_FORMS = ["torch", pytest.param("native", marks=needs.KERNEL.mark)]
FORMS = ["definition", *FAST_FORMS]
LONG = 1000  # two seconds of the definition, and so slow but for the smallest heads
LENGTHS = [1, 63, 64, 65, LONG]
HEAD_SIZES = [(16, 16), (64, 64), (72, 72), (128, 128), (16, 40)]
DECAYS = ["none", "brutal", "brutal then mild"]
CASES = [
    *({"seq": n, "sizes": s} for n, s in itertools.product(LENGTHS, HEAD_SIZES)),
    *({"seq": n, "decay": d} for n, d in itertools.product((65, LONG), DECAYS)),
    *({"seq": 200, "strength": s} for s in ("zero", "one")),
    {"seq": 200, "strength": "one", "decay": "none"},
    {"seq": 200, "initial_state": False},
]
CASES_BY_TIER = [
    pytest.param(case, marks=pytest.mark.slow)
    if case["seq"] == LONG and case.get("sizes") != (16, 40)
    else case
    for case in CASES
]
NAMES = ["query", "key", "value", "log_decay", "write_strength", "initial_state"]

# float32 sums over chunks of 64 and states carried over 1000 tokens; bfloat16 adds the rounding of
# outputs and gradients, 2^-9 of the value, and of the gradients' own inputs.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 2.0**-7}


def make_inputs(
    *, seq, sizes=(72, 72), decay="mixed", strength="mixed", initial_state=True, batch=2, heads=2
):
    generator = torch.Generator().manual_seed(seq)
    d_key, d_value = sizes

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def uniform():
        return torch.rand(batch, seq, heads, generator=generator, dtype=torch.float64)

    log_decay = {
        "mixed": -(uniform() ** 4) * 8,
        "none": torch.zeros(batch, seq, heads, dtype=torch.float64),
        "brutal": torch.full((batch, seq, heads), -60.0, dtype=torch.float64),
        "brutal then mild": torch.where(
            (torch.arange(seq) % 64 < 32)[None, :, None],
            torch.full((batch, seq, heads), -60.0, dtype=torch.float64),
            -0.01 * torch.ones(batch, seq, heads, dtype=torch.float64),
        ),
    }[decay]
    write_strength = {
        "mixed": uniform(),
        "zero": torch.zeros_like(log_decay),
        "one": torch.ones_like(log_decay),
    }[strength]
    inputs = {
        "query": F.normalize(normal(batch, seq, heads, d_key), dim=-1) * d_key**-0.5,
        "key": F.normalize(normal(batch, seq, heads, d_key), dim=-1),
        "value": normal(batch, seq, heads, d_value),
        "log_decay": log_decay,
        "write_strength": write_strength,
    }
    if initial_state:
        inputs["initial_state"] = normal(batch, heads, d_key, d_value)
    return inputs


def run(inputs, form):
    """Output, final state and the gradient of every input for fixed cotangents."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    output, state = gated_delta_rule(**leaves, form=form)
    generator = torch.Generator().manual_seed(0)
    d_output = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    d_state = torch.randn(state.shape, generator=generator, dtype=torch.float64)
    gradients = torch.autograd.grad(
        [output, state],
        list(leaves.values()),
        [d_output.to(output.dtype), d_state.to(state.dtype)],
    )
    return {
        "output": output,
        "state": state,
        **{f"d_{name}": g for name, g in zip(leaves, gradients, strict=True)},
    }


@lru_cache(maxsize=2)
def oracle(case, dtype):
    """The definition in float64, on the values that the type under test can hold."""
    inputs = {name: tensor.to(dtype).double() for name, tensor in make_inputs(**dict(case)).items()}
    return inputs, run(inputs, "definition")


def assert_close(got, wanted, tolerance):
    assert got.keys() == wanted.keys()
    for name, reference in wanted.items():
        assert got[name].isfinite().all(), name
        error = (got[name].double() - reference).abs().max().item()
        assert error <= tolerance * max(1.0, reference.abs().max().item()), f"{name}: {error:.2e}"


@pytest.mark.parametrize("form", FAST_FORMS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES_BY_TIER, ids=lambda c: "-".join(map(str, c.values())))
def test_outputs_state_and_gradients_match_the_definition(case, dtype, form):
    inputs, wanted = oracle(tuple(case.items()), dtype)
    got = run({name: tensor.to(dtype) for name, tensor in inputs.items()}, form)
    assert got["output"].dtype == dtype
    assert got["state"].dtype == torch.promote_types(dtype, torch.float32)
    assert_close(got, wanted, TOLERANCE[dtype])


@pytest.mark.parametrize("seq", [1, 4, 10])
def test_gradients_match_finite_differences(monkeypatch, seq):
    monkeypatch.setattr(chunked, "CHUNK_TOKENS", 4)
    inputs = make_inputs(seq=seq, sizes=(3, 2), batch=1, heads=2)
    leaves = [tensor.requires_grad_() for tensor in inputs.values()]

    def rule(*tensors):
        return gated_delta_rule(**dict(zip(NAMES, tensors, strict=True)), form="torch")

    assert torch.autograd.gradcheck(rule, leaves)


@given(
    seq=st.integers(1, 40),
    batch=st.integers(1, 3),
    heads=st.integers(1, 3),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    chunk_tokens=st.integers(1, 16),
    tile_tokens=st.integers(1, 64),
)
def test_chunks_and_tiles_of_any_size_give_the_same_values(
    seq, batch, heads, sizes, chunk_tokens, tile_tokens
):
    inputs = make_inputs(seq=seq, sizes=sizes, batch=batch, heads=heads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "CHUNK_TOKENS", chunk_tokens)
        patch.setattr(chunked, "TILE_TOKENS", tile_tokens)
        got = run(inputs, "torch")
    assert_close(got, run(inputs, "definition"), TOLERANCE[torch.float64])


@pytest.mark.parametrize("form", FORMS)
def test_a_sequence_cut_anywhere_goes_on_from_its_state(form):
    inputs = make_inputs(seq=130)
    state = inputs.pop("initial_state")
    whole, final = gated_delta_rule(**inputs, initial_state=state, form=form)
    pieces = []
    for start, stop in itertools.pairwise([0, 1, 65, 66, 130]):
        piece = {name: tensor[:, start:stop] for name, tensor in inputs.items()}
        output, state = gated_delta_rule(**piece, initial_state=state, form=form)
        pieces.append(output)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=0, atol=1e-10)
    torch.testing.assert_close(state, final, rtol=0, atol=1e-10)


@pytest.mark.parametrize("form", FAST_FORMS)
def test_autocast_does_not_reach_into_the_rule_or_its_backward(form):
    inputs = {name: tensor.float() for name, tensor in make_inputs(seq=65).items()}
    alone = run(inputs, form)
    with torch.autocast("cpu", torch.bfloat16):
        inside = run(inputs, form)
    for name, tensor in alone.items():
        assert torch.equal(inside[name], tensor), name


def test_autocast_does_not_reach_into_the_definition():
    inputs = {name: tensor.float() for name, tensor in make_inputs(seq=65).items()}
    alone = gated_delta_rule(**inputs, form="definition")
    with torch.autocast("cpu", torch.bfloat16):
        inside = gated_delta_rule(**inputs, form="definition")
    assert torch.equal(inside[0], alone[0])
    assert torch.equal(inside[1], alone[1])


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(1, 5, 2, 4, dtype=torch.int64)}, "query must be floating point"),
        ({"query": torch.zeros(1, 4, 2, 4)}, r"query must have the shape \(1, 5, 2, 4\)"),
        ({"value": torch.zeros(1, 5, 3, 4)}, r"value must have the shape \(1, 5, 2, 4\)"),
        ({"log_decay": torch.zeros(1, 5)}, r"log_decay must have the shape \(1, 5, 2\)"),
        ({"initial_state": torch.zeros(1, 2, 4, 5)}, r"initial_state must have the shape"),
        ({"key": torch.zeros(5, 2, 4)}, "key and value must have the shape"),
    ],
)
def test_inputs_that_do_not_fit_are_named(change, message):
    inputs = make_inputs(seq=5, sizes=(4, 4), batch=1, heads=2) | change
    with pytest.raises(ValueError, match=message):
        gated_delta_rule(**inputs, form="torch")


def test_an_empty_sequence_is_refused():
    with pytest.raises(ValueError, match="the sequence is empty"):
        gated_delta_rule(**make_inputs(seq=0), form="torch")


def test_one_wide_input_makes_the_sums_wide():
    inputs = make_inputs(seq=65)
    exact, state = gated_delta_rule(**inputs, form="torch")
    inputs["value"] = inputs["value"].float()
    near, near_state = gated_delta_rule(**inputs, form="auto")
    assert near.dtype == torch.float32
    assert state.dtype == near_state.dtype == torch.float64
    torch.testing.assert_close(near.double(), exact, rtol=0, atol=1e-6)


@pytest.mark.usefixtures("shapes_unchecked")
def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match="unknown form 'fast'; known: auto, definition"):
        choose_form("fast")  # pyright: ignore[reportArgumentType]


# --- peers: other people's code for the same rule -----------------------------------------------


def transformers_fallback():
    module = needs.module("transformers.models.qwen3_next.modeling_qwen3_next")
    rule = inspect.unwrap(module.torch_chunk_gated_delta_rule)  # not the kernel it may hide

    def run_peer(i):
        return rule(
            i["query"], i["key"], i["value"], i["log_decay"], i["write_strength"],
            initial_state=i["initial_state"], output_final_state=True,
        )  # fmt: skip

    return run_peer


def fla_naive(name):
    rule = getattr(needs.module("fla.ops.gated_delta_rule.naive"), name)

    def run_peer(i):
        return rule(
            q=i["query"], k=i["key"], v=i["value"], g=i["log_decay"], beta=i["write_strength"],
            initial_state=i["initial_state"], output_final_state=True,
        )  # fmt: skip

    return run_peer


PEERS = {
    "transformers": transformers_fallback,
    "fla recurrent": lambda: fla_naive("naive_recurrent_gated_delta_rule"),
    "fla chunk": lambda: fla_naive("naive_chunk_gated_delta_rule"),
}


@pytest.mark.parametrize("seq", [1, 65, 200])
@pytest.mark.parametrize("peer", PEERS)
def test_others_who_wrote_this_rule_agree(peer, seq):
    run_peer = PEERS[peer]()
    inputs = {name: tensor.float() for name, tensor in make_inputs(seq=seq).items()}
    ours, our_state = gated_delta_rule(**inputs, form="torch")
    inputs["query"] = (
        inputs["query"] * inputs["query"].shape[-1] ** 0.5
    )  # peers scale it themselves
    theirs, their_state = run_peer(inputs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE[torch.float32])
    torch.testing.assert_close(our_state, their_state, rtol=0, atol=TOLERANCE[torch.float32])
