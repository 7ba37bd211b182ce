"""Every member of the family, in every form, type and instruction set, against the definition.

A member is a choice of two switches: a decay (none, one for a head, one for each channel) and an
erase key (none, given, or the own key times a write strength). Errors are relative to the largest
value of a tensor, never below one: outputs and gradients are sums of terms of order one, and what
cancels leaves rounding of that size.
"""

import itertools
from functools import lru_cache

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import needs
from instruction_sets import running_with, sets_here
from mixerloop.ops import chunked_linear_attention
from mixerloop.ops.gated_delta_rule import gated_delta_rule
from mixerloop.ops.linear_attention import bind_linear_attention, linear_attention

DECAYS = ("none", "head", "channel")
ERASES = ("none", "given", "own")  # own: a write strength in place of an erase key
MEMBERS = list(itertools.product(DECAYS, ERASES))
LENGTHS = (1, 15, 16, 17, 63, 64, 65)
LONG = 1000
SIZES = ((16, 16), (64, 64), (72, 72), (128, 64), (32, 128))
TOKENS = ("query", "key", "value", "erase_key")
# float32: sums over chunks, and states carried over 1000 tokens; bfloat16 adds the rounding of
# outputs and gradients, 2^-9 of the value, and of the gradients' own inputs.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 2.0**-7}
TWICE = 2
"""A log decay's gradient is a sum over the whole state; test_gated_delta_rule.py has this bound."""


def make_inputs(
    *, decay, erase, seq, sizes=(16, 16), state=True, strength="mixed", batch=1, heads=2, seed=0
):
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
        inputs["log_decay"] = {
            "mixed": -(uniform(*shape) ** 4) * 8,
            "brutal": torch.where(uniform(*shape) < 0.5, -60.0, 0.0).double(),
            "weak": -0.01 * uniform(*shape),
        }[strength]
    if erase == "given":
        inputs["erase_key"] = 2 * uniform(*keys) * inputs["key"]
    if erase == "own":
        inputs["write_strength"] = uniform(*keys[:3])
    if state:
        inputs["initial_state"] = normal(batch, heads, d_key, d_value)
    return inputs


def results(inputs, form, rule=linear_attention):
    """Outputs and gradients, of a cotangent that bfloat16 holds exactly."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    output, state = rule(**leaves, form=form)
    generator = torch.Generator().manual_seed(0)
    cotangents = [
        torch.randn(x.shape, generator=generator).bfloat16().to(x.dtype) for x in (output, state)
    ]
    gradients = torch.autograd.grad([output, state], list(leaves.values()), cotangents)
    names = ["output", "state", *(f"d_{name}" for name in leaves)]
    return dict(zip(names, [output, state, *gradients], strict=True))


def stored_as(dtype, inputs):
    """Tokens in this type; what is never narrower than float32 in float32 or float64."""
    wide = torch.promote_types(dtype, torch.float32)
    return {name: x.to(dtype if name in TOKENS else wide) for name, x in inputs.items()}


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


def check(dtype, form, **case):
    inputs, wanted = oracle(tuple(case.items()), dtype)
    got = results(inputs, form)
    assert got["output"].dtype == dtype
    assert got["state"].dtype == torch.promote_types(dtype, torch.float32)
    assert_close(got, wanted, TOLERANCE[dtype])


def check_kernel(dtype, **case):
    """With every instruction set; the definition, which takes longest, runs once for all."""
    for instruction_set in sets_here():
        with running_with(instruction_set):
            check(dtype, "native", **case)


@needs.KERNEL.mark
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("decay", "erase"), MEMBERS)
def test_the_kernel_computes_every_member(decay, erase, dtype, sizes):
    for seq, state in itertools.product(LENGTHS, (True, False)):
        check_kernel(dtype, decay=decay, erase=erase, seq=seq, sizes=sizes, state=state)


@needs.KERNEL.mark
@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("decay", "erase"), MEMBERS)
def test_the_kernel_computes_every_member_over_long_sequences(decay, erase, dtype, sizes):
    for state in (True, False):
        check_kernel(dtype, decay=decay, erase=erase, seq=LONG, sizes=sizes, state=state)


@needs.KERNEL.mark
@pytest.mark.parametrize("strength", ["brutal", "weak"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("erase", ERASES)
@pytest.mark.parametrize("decay", ["head", "channel"])
def test_brutal_and_weak_decays_neither_overflow_nor_lose_digits(decay, erase, dtype, strength):
    for seq in (17, 65):
        check_kernel(dtype, decay=decay, erase=erase, seq=seq, strength=strength)


def random_case(generator, decay, erase):
    """Any sizes, lengths around the edges of chunks and kept states, mild to brutal decays."""

    def number(most):
        return int(torch.randint(1, most + 1, (), generator=generator))

    edges = (1, 15, 16, 17, 32, 33, 63, 64, 65, 80)
    seq = edges[number(len(edges)) - 1] if number(3) == 1 else number(36)
    return make_inputs(
        decay=decay,
        erase=erase,
        seq=seq,
        sizes=(number(40), number(40)),
        state=number(2) == 1,
        strength=("mixed", "brutal", "weak")[number(3) - 1],
        batch=number(2),
        heads=number(2),
        seed=number(2**30),
    )


def largest_error(inputs, dtype):
    """Of all outputs and gradients, relative to the largest value and never below one."""
    stored = stored_as(dtype, inputs)
    wanted = results({name: x.double() for name, x in stored.items()}, "definition")
    got = results(stored, "native")
    return max(
        ((got[name].double() - right).abs().max() / right.abs().max().clamp_min(1)).item()
        for name, right in wanted.items()
    )


@needs.KERNEL.mark
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("decay", "erase"), MEMBERS)
def test_random_cases_match_the_definition(instruction_set, decay, erase, dtype):
    """`python benchmarks/fuzz_native.py` runs ten thousand of each member."""
    generator = torch.Generator().manual_seed(0)
    for number in range(8):
        error = largest_error(random_case(generator, decay, erase), dtype)
        assert error < TOLERANCE[dtype], f"case {number}: {error:.2e}"


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("decay", "erase"), MEMBERS)
def test_the_torch_form_computes_every_member(decay, erase, dtype):
    for seq, sizes in itertools.product((1, 15, 65, 130), ((16, 16), (32, 12))):
        check(dtype, "torch", decay=decay, erase=erase, seq=seq, sizes=sizes)
    if decay != "none":
        check(dtype, "torch", decay=decay, erase=erase, seq=65, strength="brutal")


@given(
    member=st.sampled_from(MEMBERS),
    seq=st.integers(1, 40),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    chunk_tokens=st.integers(1, 16),
)
def test_chunks_of_any_size_give_the_same_values(member, seq, sizes, chunk_tokens):
    inputs = make_inputs(decay=member[0], erase=member[1], seq=seq, sizes=sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_linear_attention, "CHUNK_TOKENS", chunk_tokens)
        patch.setattr(chunked_linear_attention, "CHANNEL_CHUNK_TOKENS", chunk_tokens)
        got = results(inputs, "torch")
    assert_close(got, results(inputs, "definition"), TOLERANCE[torch.float64])


@pytest.mark.parametrize("form", ["torch", pytest.param("native", marks=needs.KERNEL.mark)])
@pytest.mark.parametrize(("decay", "erase"), MEMBERS)
def test_gradients_match_finite_differences(decay, erase, form):
    inputs = make_inputs(decay=decay, erase=erase, seq=19, sizes=(3, 2), heads=1)
    leaves = [tensor.requires_grad_() for tensor in inputs.values()]

    def rule(*tensors):
        return linear_attention(**dict(zip(inputs, tensors, strict=True)), form=form)

    assert torch.autograd.gradcheck(rule, leaves)


@pytest.mark.parametrize("form", ["torch", pytest.param("native", marks=needs.KERNEL.mark)])
@pytest.mark.parametrize(("decay", "erase"), MEMBERS)
def test_a_sequence_cut_anywhere_continues_from_its_state(decay, erase, form):
    inputs = make_inputs(decay=decay, erase=erase, seq=130)
    state = inputs.pop("initial_state")
    whole, final = linear_attention(**inputs, initial_state=state, form=form)
    pieces = []
    for start, stop in itertools.pairwise([0, 1, 65, 66, 130]):
        piece = {name: tensor[:, start:stop] for name, tensor in inputs.items()}
        output, state = linear_attention(**piece, initial_state=state, form=form)
        pieces.append(output)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=0, atol=1e-10)
    torch.testing.assert_close(state, final, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "form", ["definition", "torch", pytest.param("native", marks=needs.KERNEL.mark)]
)
@pytest.mark.parametrize("decay", ["head", "channel"])
def test_the_gated_delta_rule_is_the_member_that_erases_with_its_own_key(decay, form):
    inputs = make_inputs(decay=decay, erase="none", seq=70)
    strength = torch.rand(inputs["key"].shape[:3], dtype=torch.float64)
    own = results(inputs | {"write_strength": strength}, form, rule=gated_delta_rule)
    erase_key, value = (strength[..., None] * inputs[name] for name in ("key", "value"))
    member = results(inputs | {"value": value, "erase_key": erase_key}, "definition")
    for name in ("output", "state", "d_query", "d_log_decay", "d_initial_state"):
        torch.testing.assert_close(own[name], member[name], rtol=0, atol=1e-11)
    d_erase, d_value = member["d_erase_key"], member["d_value"]
    torch.testing.assert_close(own["d_value"], strength[..., None] * d_value, rtol=0, atol=1e-11)
    torch.testing.assert_close(
        own["d_key"], member["d_key"] + strength[..., None] * d_erase, rtol=0, atol=1e-11
    )
    torch.testing.assert_close(
        own["d_write_strength"],
        (d_erase * inputs["key"]).sum(-1) + (d_value * inputs["value"]).sum(-1),
        rtol=0,
        atol=1e-11,
    )


@pytest.mark.parametrize(
    "form", ["definition", "torch", pytest.param("native", marks=needs.KERNEL.mark)]
)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("seq", [1, 20])
def test_a_write_strength_stands_for_an_erase_key_and_a_value(decay, form, seq):
    inputs = make_inputs(decay=decay, erase="none", seq=seq)
    strength = torch.rand(inputs["key"].shape[:3], dtype=torch.float64)
    short = results(inputs | {"write_strength": strength}, form)
    erase_key, value = (strength[..., None] * inputs[name] for name in ("key", "value"))
    long = results(inputs | {"value": value, "erase_key": erase_key}, "definition")
    alone = linear_attention(**inputs, write_strength=strength, form=form)  # without gradients
    for name, one in zip(("output", "state"), alone, strict=True):
        torch.testing.assert_close(short[name], long[name], rtol=0, atol=1e-11)
        torch.testing.assert_close(one, long[name], rtol=0, atol=1e-11)
    with pytest.raises(ValueError, match="an erase key or a write strength, not both"):
        linear_attention(**inputs, write_strength=strength, erase_key=erase_key, form=form)


@pytest.mark.parametrize("form", ["torch", pytest.param("native", marks=needs.KERNEL.mark)])
@pytest.mark.parametrize(("decay", "erase"), MEMBERS)
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_reaches_no_earlier_token(decay, erase, form, number):
    inputs = make_inputs(decay=decay, erase=erase, seq=40, sizes=(9, 11))
    for name in inputs.keys() - {"initial_state"}:
        for token in (0, 15, 20, 31, 39):
            broken = dict(inputs)
            broken[name] = inputs[name].clone()
            broken[name].select(1, token).flatten()[0] = number
            if name == "log_decay" and number > 0:
                continue  # no decay is positive
            wanted = linear_attention(**broken, form="definition")
            got = linear_attention(**broken, form=form)
            for mine, theirs in zip(got, wanted, strict=True):
                assert torch.equal(mine.isfinite(), theirs.isfinite()), (name, token)
                finite = theirs.isfinite()
                torch.testing.assert_close(mine[finite], theirs[finite], rtol=0, atol=1e-10)


@needs.KERNEL.mark
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize(("decay", "erase"), MEMBERS)
def test_gradients_are_finite_where_those_of_the_definition_are(decay, erase, number):
    inputs = make_inputs(decay=decay, erase=erase, seq=40, sizes=(9, 11))
    for name in inputs.keys() - {"initial_state"}:
        for token in (0, 20, 39):
            broken = dict(inputs)
            broken[name] = inputs[name].clone()
            broken[name].select(1, token).flatten()[0] = -number if name == "log_decay" else number
            wanted, got = results(broken, "definition"), results(broken, "native")
            for result, theirs in wanted.items():
                finite = theirs.isfinite()
                assert got[result][finite].isfinite().all(), (name, token, result)


@pytest.mark.parametrize("form", ["torch", pytest.param("native", marks=needs.KERNEL.mark)])
@pytest.mark.parametrize("decay", ["head", "channel"])
def test_a_log_decay_of_minus_infinity_forgets(decay, form):
    inputs = make_inputs(decay=decay, erase="given", seq=40)
    inputs["log_decay"].select(1, 20).fill_(-torch.inf)
    assert_close(results(inputs, form), results(inputs, "definition"), 1e-10)
    afresh = {name: x[:, 20:] for name, x in inputs.items() if name != "initial_state"}
    alone, _ = linear_attention(**afresh, form=form)
    whole, _ = linear_attention(**inputs, form=form)
    torch.testing.assert_close(whole[:, 20:], alone, rtol=0, atol=1e-10)


@needs.KERNEL.mark
@pytest.mark.parametrize(("decay", "erase"), MEMBERS)
def test_torch_knows_the_operator(decay, erase):
    inputs = make_inputs(decay=decay, erase=erase, seq=20)
    names = ("query", "key", "value", "log_decay", "erase_key", "write_strength", "initial_state")
    leaves = [inputs[name].requires_grad_() if name in inputs else None for name in names]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(
        torch.ops.mixerloop.linear_attention.default, (*leaves, True), test_utils=checks
    )


@needs.KERNEL.mark
@pytest.mark.parametrize(("decay", "erase"), MEMBERS)
def test_the_short_way_around_torch_computes_the_same_bits(decay, erase):
    """Without gradients the kernel is called directly, with them through torch's dispatcher."""
    for seq, state in itertools.product((1, 40), (True, False)):
        inputs = make_inputs(decay=decay, erase=erase, seq=seq, state=state)
        short = linear_attention(**inputs, form="native")
        long = results(inputs, "native")
        assert torch.equal(short[0], long["output"])
        assert torch.equal(short[1], long["state"])


@needs.KERNEL.mark
@pytest.mark.parametrize(("decay", "erase"), MEMBERS)
def test_a_bound_call_decodes_like_a_sequence(decay, erase):
    inputs = make_inputs(decay=decay, erase=erase, seq=20)
    state = inputs.pop("initial_state")
    whole, final = linear_attention(**inputs, initial_state=state, form="native")
    slots = {name: tensor[:, :1].clone() for name, tensor in inputs.items()}
    bound = bind_linear_attention(**slots, initial_state=state.clone(), in_place=True)
    for token in range(20):
        for name, slot in slots.items():
            slot.copy_(inputs[name][:, token : token + 1])
        bound.run()
        torch.testing.assert_close(bound.output[:, 0], whole[:, token], rtol=0, atol=1e-11)
    torch.testing.assert_close(bound.final_state, final, rtol=0, atol=1e-11)


@needs.KERNEL.mark
def test_a_bound_call_takes_only_what_stays_in_place():
    inputs = make_inputs(decay="head", erase="given", seq=1)
    with pytest.raises(ValueError, match="an erase key or a write strength, not both"):
        bind_linear_attention(**inputs, write_strength=inputs["log_decay"], in_place=False)
    with pytest.raises(ValueError, match="a bound call needs contiguous tensors"):
        bind_linear_attention(**inputs | {"value": inputs["value"].float()}, in_place=False)
    with pytest.raises(ValueError, match=r"a bound call needs .* without gradients"):
        bind_linear_attention(
            **inputs | {"value": inputs["value"].clone().requires_grad_()}, in_place=False
        )
    inputs.pop("initial_state")
    with pytest.raises(ValueError, match="in_place needs an initial state"):
        bind_linear_attention(**inputs, in_place=True)


@needs.KERNEL.mark
def test_tensors_that_are_not_what_they_hold_take_the_long_way():
    """A view with the sign still to be changed, and a default device that is not the inputs'."""
    inputs = make_inputs(decay="head", erase="given", seq=5, state=False)
    wanted, _ = linear_attention(**inputs, form="torch")
    flip = torch._neg_view  # pyright: ignore[reportPrivateImportUsage]
    flipped = inputs | {"value": flip(-inputs["value"])}
    assert flipped["value"].is_neg()
    got, _ = linear_attention(**flipped, form="native")
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    with torch.device("meta"):
        got, _ = linear_attention(**inputs, form="native")
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(1, 5, 2, 4, dtype=torch.int64)}, "query must be floating point"),
        ({"query": torch.zeros(1, 4, 2, 4)}, r"query must have the shape \(1, 5, 2, 4\)"),
        ({"erase_key": torch.zeros(1, 5, 2, 3)}, r"erase_key must have the shape \(1, 5, 2, 4\)"),
        (
            {"log_decay": torch.zeros(1, 5, 2, 3)},
            r"log_decay must have the shape \(1, 5, 2\) or \(1, 5, 2, 4\)",
        ),
        ({"initial_state": torch.zeros(1, 2, 4, 5)}, r"initial_state must have the shape"),
        ({"key": torch.zeros(5, 2, 4)}, "key and value must have the shape"),
        ({"value": torch.zeros(())}, "key and value must have the shape"),
    ],
)
@pytest.mark.parametrize("form", ["torch", "auto"])
def test_inputs_that_do_not_fit_are_named(change, message, form):
    inputs = make_inputs(decay="head", erase="given", seq=5, sizes=(4, 4)) | change
    with pytest.raises(ValueError, match=message):
        linear_attention(**inputs, form=form)


def test_an_empty_sequence_is_rejected():
    with pytest.raises(ValueError, match="the sequence is empty"):
        linear_attention(**make_inputs(decay="head", erase="given", seq=0), form="auto")


def test_fla_has_no_kernel_for_erase_keys():
    from mixerloop.ops.fla import fla_linear_attention

    inputs = make_inputs(decay="head", erase="given", seq=5)
    with pytest.raises(ValueError, match="fla has no kernel for erase keys; choose torch"):
        fla_linear_attention(**inputs)
