"""Every member of the family, in every form, type and instruction set, against the definition."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import needs
from instruction_sets import running_with, sets_here
from mixerloop.ops import chunked_linear_attention
from mixerloop.ops.fla import fla_linear_attention
from mixerloop.ops.linear_attention import bind_linear_attention, linear_attention
from mixerloop.ops.native_library import INSTRUCTION_SETS
from rule_cases import (
    DECAYS,
    ERASES,
    MEMBERS,
    TOLERANCE,
    assert_close,
    check,
    largest_error,
    make_inputs,
    random_case,
    results,
    stored_as,
)

NATIVE = pytest.param("native", marks=needs.KERNEL.mark)
FAST_FORMS = ["torch", NATIVE]
LENGTHS = (1, 15, 16, 17, 63, 64, 65)
LONG = 1000
SIZES = ((16, 16), (64, 64), (72, 72), (128, 64), (32, 128))
SHAPES = {  # each length and each size once; the nightly test has all of their combinations
    torch.float64: [
        *((1, (16, 16)), (15, (128, 64)), (16, (32, 128)), (17, (72, 72))),
        *((63, (64, 64)), (64, (16, 16)), (65, (72, 72))),
    ],
    torch.float32: [(1, (64, 64)), (17, (32, 128)), (65, (128, 64))],
    torch.bfloat16: [(1, (72, 72)), (16, (128, 64)), (65, (72, 72))],
}
every_member = pytest.mark.parametrize(("decay", "erase"), MEMBERS)
every_type = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def check_kernel(dtype, **case):
    """With every instruction set; the definition, which takes longest, runs once for all."""
    for instruction_set in sets_here():
        with running_with(instruction_set):
            check(dtype, "native", **case)


@needs.KERNEL.mark
@every_type
@every_member
def test_the_kernel_computes_every_member(decay, erase, dtype):
    for number, (seq, sizes) in enumerate(SHAPES[dtype]):
        state = number % 2 == 0
        check_kernel(dtype, decay=decay, erase=erase, seq=seq, sizes=sizes, state=state)


@needs.KERNEL.mark
@pytest.mark.slow
@every_member
def test_the_kernel_computes_every_member_over_long_sequences(decay, erase):
    check_kernel(torch.float32, decay=decay, erase=erase, seq=LONG, sizes=(72, 72))


@needs.KERNEL.mark
@pytest.mark.nightly
@every_type
@every_member
def test_the_kernel_computes_every_member_in_every_shape(decay, erase, dtype):
    for seq, sizes, state in itertools.product((*LENGTHS, LONG), SIZES, (True, False)):
        check_kernel(dtype, decay=decay, erase=erase, seq=seq, sizes=sizes, state=state)


@needs.KERNEL.mark
@pytest.mark.parametrize("decays", ["brutal", "weak"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("erase", ERASES)
@pytest.mark.parametrize("decay", ["head", "channel"])
def test_brutal_and_weak_decays_neither_overflow_nor_lose_digits(decay, erase, dtype, decays):
    check_kernel(dtype, decay=decay, erase=erase, seq=65, decays=decays)


def rate_gradient(inputs, form):
    """Of `A_log` of each head, where the log decay is exp(A_log) times the given log decay."""
    log_rate = torch.full((2,), 3.0, dtype=inputs["query"].dtype, requires_grad=True)
    unit = inputs["log_decay"]
    log_decay = unit * log_rate.exp().view(2, *[1] * (unit.ndim - 3))
    outputs = linear_attention(**inputs | {"log_decay": log_decay}, form=form)
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(x.shape, generator=generator).to(x.dtype) for x in outputs]
    return torch.autograd.grad(outputs, log_rate, weights)[0].double()


@pytest.mark.parametrize("form", FAST_FORMS)
@pytest.mark.parametrize("erase", ERASES)
@pytest.mark.parametrize("decay", ["head", "channel"])
def test_a_rate_of_strong_decays_keeps_the_digits_of_its_gradient(decay, erase, form):
    """It is a sum of log decays, up to -160, times their gradients, which are as small as exp."""
    inputs = stored_as(torch.float32, make_inputs(decay=decay, erase=erase, seq=80))
    wanted = rate_gradient({name: x.double() for name, x in inputs.items()}, "definition")
    error = (rate_gradient(inputs, form) - wanted).abs().max() / wanted.abs().max()
    assert error < TOLERANCE[torch.float32]


@needs.KERNEL.mark
@every_type
@every_member
def test_random_cases_match_the_definition(instruction_set, decay, erase, dtype):
    """`python benchmarks/fuzz_native.py` runs ten thousand of each member."""
    generator = torch.Generator().manual_seed(INSTRUCTION_SETS.index(instruction_set))
    for number in range(2):
        error = largest_error(random_case(generator, decay, erase), dtype)
        assert error < TOLERANCE[dtype], f"case {number}: {error:.2e}"


@every_member
def test_the_torch_form_computes_every_member(decay, erase):
    member = {"decay": decay, "erase": erase}
    for seq, sizes in ((1, (16, 16)), (15, (32, 12)), (65, (16, 16)), (130, (32, 12))):
        check(torch.float64, "torch", **member, seq=seq, sizes=sizes, state=seq != 15)
    for dtype in (torch.float32, torch.bfloat16):
        check(dtype, "torch", **member, seq=65, sizes=(32, 12))
    if decay != "none":
        for dtype in (torch.float64, torch.float32):
            check(dtype, "torch", **member, seq=65, decays="brutal")


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


@pytest.mark.parametrize("form", ["definition", *FAST_FORMS])
@every_member
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


@pytest.mark.parametrize("form", ["definition", *FAST_FORMS])
def test_two_tokens_are_those_computed_by_hand(form):
    """S = 2 decays to 1, is read at e as 0.5 and becomes 3.5; then 1.75, 1.75 and 2.5."""
    numbers = {"query": [2, 1], "key": [1, -1], "value": [3, 1], "erase_key": [0.5, 1]}
    inputs = {
        name: torch.tensor(x, dtype=torch.float64).view(1, 2, 1, 1) for name, x in numbers.items()
    }
    half = torch.full((1, 2, 1), 0.5, dtype=torch.float64).log()
    two = torch.full((1, 1, 1, 1), 2.0, dtype=torch.float64)
    output, state = linear_attention(**inputs, log_decay=half, initial_state=two, form=form)
    assert output.flatten().tolist() == pytest.approx([7, 2.5], abs=1e-14)
    assert state.item() == pytest.approx(2.5, abs=1e-14)


@pytest.mark.parametrize("decay", DECAYS)
def test_a_write_strength_stands_for_an_erase_key_and_a_value(decay):
    """The gated delta rule is the member that erases with its own key; the gradients follow."""
    inputs = make_inputs(decay=decay, erase="own", seq=20)
    own = results(inputs, "definition")
    strength = inputs.pop("write_strength")
    erase_key, value = (strength[..., None] * inputs[name] for name in ("key", "value"))
    member = results(inputs | {"value": value, "erase_key": erase_key}, "definition")
    d_erase, d_value = member.pop("d_erase_key"), member["d_value"]
    strengths = (d_erase * inputs["key"]).sum(-1) + (d_value * inputs["value"]).sum(-1)
    assert_close(
        own,
        member
        | {
            "d_value": strength[..., None] * d_value,
            "d_key": member["d_key"] + strength[..., None] * d_erase,
            "d_write_strength": strengths,
        },
        1e-11,
    )


@pytest.mark.parametrize("form", FAST_FORMS)
@every_member
def test_a_number_that_is_not_finite_reaches_no_earlier_token(decay, erase, form):
    inputs = make_inputs(decay=decay, erase=erase, seq=40, sizes=(9, 11))
    for name in inputs.keys() - {"initial_state"}:
        infinity = -torch.inf if name == "log_decay" else torch.inf  # no decay is positive
        for number, token in enumerate((0, 15, 20, 31, 39)):
            broken = inputs | {name: inputs[name].clone()}
            broken[name].select(1, token).flatten()[0] = (torch.nan, infinity)[number % 2]
            wanted = linear_attention(**broken, form="definition")
            got = linear_attention(**broken, form=form)
            for mine, theirs in zip(got, wanted, strict=True):
                assert torch.equal(mine.isfinite(), theirs.isfinite()), (name, token)
                finite = theirs.isfinite()
                torch.testing.assert_close(mine[finite], theirs[finite], rtol=0, atol=1e-10)


@needs.KERNEL.mark
@every_member
def test_gradients_are_finite_where_those_of_the_definition_are(decay, erase):
    inputs = make_inputs(decay=decay, erase=erase, seq=40, sizes=(9, 11))
    for name in inputs.keys() - {"initial_state"}:
        infinity = -torch.inf if name == "log_decay" else torch.inf
        for token, number in ((0, torch.nan), (20, infinity), (39, torch.nan)):
            broken = inputs | {name: inputs[name].clone()}
            broken[name].select(1, token).flatten()[0] = number
            wanted, got = results(broken, "definition"), results(broken, "native")
            for result, theirs in wanted.items():
                finite = theirs.isfinite()
                assert got[result][finite].isfinite().all(), (name, token, result)


@pytest.mark.parametrize("form", FAST_FORMS)
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
@every_member
def test_torch_knows_the_operator(decay, erase):
    inputs = make_inputs(decay=decay, erase=erase, seq=20)
    names = ("query", "key", "value", "log_decay", "erase_key", "write_strength", "initial_state")
    leaves = [inputs[name].requires_grad_() if name in inputs else None for name in names]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(
        torch.ops.mixerloop.linear_attention.default, (*leaves, True), test_utils=checks
    )


@needs.KERNEL.mark
@every_member
def test_the_short_way_around_torch_computes_the_same_bits(decay, erase):
    """Without gradients the kernel is called directly, with them through torch's dispatcher."""
    for seq, state in itertools.product((1, 40), (True, False)):
        inputs = make_inputs(decay=decay, erase=erase, seq=seq, state=state)
        short = linear_attention(**inputs, form="native")
        long = results(inputs, "native")
        assert torch.equal(short[0], long["output"])
        assert torch.equal(short[1], long["state"])


@needs.KERNEL.mark
@every_member
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
    leaf = inputs["value"].clone().requires_grad_()
    with pytest.raises(ValueError, match=r"a bound call needs .* without gradients"):
        bind_linear_attention(**inputs | {"value": leaf}, in_place=False)
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
    ("erase", "change", "message"),
    [
        (
            "given",
            {"query": torch.zeros(1, 5, 2, 4, dtype=torch.int64)},
            "query must be floating point",
        ),
        ("given", {"query": torch.zeros(1, 4, 2, 4)}, r"query must have the shape \(1, 5, 2, 4\)"),
        ("given", {"erase_key": torch.zeros(1, 5, 2, 3)}, r"erase_key must have .*\(1, 5, 2, 4\)"),
        ("given", {"log_decay": torch.zeros(1, 5, 2, 3)}, r"\(1, 5, 2\) or \(1, 5, 2, 4\) to fit"),
        ("given", {"initial_state": torch.zeros(1, 2, 4, 5)}, "initial_state must have the shape"),
        ("given", {"key": torch.zeros(5, 2, 4)}, "key and value must have the shape"),
        ("given", {"value": torch.zeros(())}, "key and value must have the shape"),
        ("own", {"value": torch.zeros(1, 5, 3, 4)}, r"value must have the shape \(1, 5, 2, 4\)"),
        ("own", {"log_decay": torch.zeros(1, 5)}, r"log_decay must have the shape \(1, 5, 2\)"),
        ("own", {"write_strength": torch.zeros(1, 5, 2, 4)}, r"write_strength must .*\(1, 5, 2\)"),
        ("own", {"erase_key": torch.zeros(1, 5, 2, 4)}, "an erase key or a write strength, not"),
        ("given", {x: torch.zeros(1, 0, 2, 4) for x in ("query", "key", "value")}, "is empty"),
        ("own", {x: torch.zeros(1, 0, 2, 4) for x in ("query", "key", "value")}, "is empty"),
    ],
)
@pytest.mark.parametrize("form", ["torch", "auto"])
def test_inputs_that_do_not_fit_are_named(erase, change, message, form):
    inputs = make_inputs(decay="head", erase=erase, seq=5, sizes=(4, 4)) | change
    with pytest.raises(ValueError, match=message):
        linear_attention(**inputs, form=form)


def test_fla_has_no_kernel_for_erase_keys():
    inputs = make_inputs(decay="head", erase="given", seq=5)
    with pytest.raises(ValueError, match="fla has no kernel for erase keys; choose torch"):
        fla_linear_attention(**inputs)
