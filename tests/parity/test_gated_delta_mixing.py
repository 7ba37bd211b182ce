"""The fused mixer against its definition in torch, in float64, with the recurrence itself.

Errors are relative to the largest value of a tensor, and never below one, as for the rule.
"""

import pytest
import torch

import needs
from mixerloop.config import Form
from mixerloop.ops.gated_delta_mixing import MixingWeights, Projected, gated_delta_mixing
from mixerloop.ops.native_library import INSTRUCTION_SETS

pytestmark = needs.KERNEL.mark

# Tokens in bfloat16 are rounded where they are stored, by 2^-9 of the value, and nowhere else. The
# gradient of the last ones is a sum, with what comes back from the history: rounded three times.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 3e-5, torch.bfloat16: 3 * 2.0**-9}
NORM_EPS = 1e-5


def make_case(*, batch=2, seq=70, heads=2, d_head=24, width=4, state=True, seed=0, rate=1.0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inner = heads * d_head
    tokens = (
        *(normal(batch, seq, 3 * inner), normal(batch, seq, inner)),
        *(normal(batch, seq, heads), normal(batch, seq, heads)),
    )
    weights = (
        *(normal(3 * inner, width) * 0.5, normal(heads) * 0.3 + rate),
        *(normal(heads), 1 + normal(d_head) * 0.2),
    )
    states = (normal(batch, heads, d_head, d_head), normal(batch, width - 1, 3 * inner))
    return tokens, weights, states if state else (None, None)


def random_case(generator, dtype):
    """Any shape. One or two numbers of unit length are little more than signs, and their gradient
    in float32 is mostly rounding, the definition's as well; such heads are for float64.
    """

    def number(most, least=1):
        return int(torch.randint(least, most + 1, (), generator=generator))

    return make_case(
        batch=number(2),
        seq=number(150),
        heads=number(3),
        d_head=number(40, least=1 if dtype == torch.float64 else 4),
        width=number(6),
        seed=number(2**31 - 1),
        rate=3.0 - number(9),
    )


def mixed(tokens, weights, memory=None, conv_history=None, *, form: Form = "native"):
    return gated_delta_mixing(
        Projected(*tokens),
        MixingWeights(*weights),
        norm_eps=NORM_EPS,
        form=form,
        memory=memory,
        conv_history=conv_history,
    )


def results(case, dtype, form: Form):
    """Outputs and all gradients, for tokens of one type and weights that are never narrow."""
    wide = torch.promote_types(dtype, torch.float32)
    tokens = [x.to(dtype).requires_grad_() for x in case[0]]
    weights = [x.to(wide).requires_grad_() for x in case[1]]
    states = [None if x is None else x.to(wide).requires_grad_() for x in case[2]]
    outputs = mixed(tokens, weights, *states, form=form)
    leaves = [x for x in (*tokens, *weights, *states) if x is not None and x.numel()]
    generator = torch.Generator().manual_seed(1)
    given = [torch.randn(x.shape, generator=generator).bfloat16().to(x.dtype) for x in outputs]
    return [*outputs, *torch.autograd.grad(outputs, leaves, given)]


def rounded(case, dtype):
    """The same case after its tokens were stored in a type."""
    tokens, weights, states = case
    return [x.to(dtype).double() for x in tokens], weights, states


def largest_error(case, dtype):
    wanted = results(rounded(case, dtype), torch.float64, "definition")
    got = results(case, dtype, "native")
    return max(
        ((one.double() - other).abs().max() / other.abs().max().clamp_min(1)).item()
        for one, other in zip(got, wanted, strict=True)
        if other.numel()
    )


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    "case",
    [
        *(
            {"seq": seq, "d_head": d}
            for seq, d in ((1, 64), (15, 16), (16, 33), (17, 72), (64, 24))
        ),
        *({"seq": seq, "d_head": d} for seq, d in ((63, 1), (65, 128), (130, 40))),
        *(
            {"width": width, "seq": 20} for width in (1, 2, 8, 17, 18)
        ),  # 18: the rule alone is native
        *({"state": False, "seq": seq} for seq in (1, 3, 100)),
        *({"rate": rate} for rate in (-6.0, 3.0)),
    ],
    ids=str,
)
def test_outputs_and_gradients_match_the_definition(case, dtype):
    assert largest_error(make_case(**case), dtype) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_any_shape_on_any_instruction_set(instruction_set, dtype):
    """`python benchmarks/fuzz_native.py` runs ten thousand."""
    generator = torch.Generator().manual_seed(INSTRUCTION_SETS.index(instruction_set))
    for number in range(6):
        error = largest_error(random_case(generator, dtype), dtype)
        assert error < TOLERANCE[dtype], f"case {number}: {error:.2e}"


@pytest.mark.parametrize("cut", [1, 3, 16, 69])
def test_a_sequence_can_stop_and_go_on(cut):
    tokens, weights, states = make_case()
    whole, *after = mixed(tokens, weights, *states)
    first, *between = mixed([x[:, :cut] for x in tokens], weights, *states)
    second, *end = mixed([x[:, cut:] for x in tokens], weights, *between)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=0, atol=1e-12)
    for one, other in zip(end, after, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_the_number_of_threads_changes_no_bit():
    case = make_case(batch=4)
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2, 2):
        torch.set_num_threads(threads)
        found.append(results(case, torch.bfloat16, "native"))
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_torch_knows_the_operator():
    tokens, weights, (memory, history) = make_case(seq=20, d_head=8)
    assert memory is not None
    assert history is not None
    leaves = [x.requires_grad_() for x in (*tokens, *weights, history, memory)]
    torch.library.opcheck(
        torch.ops.mixerloop.gated_delta_mixing.default,
        (*leaves, NORM_EPS, 1e-6, True),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize("form", ["native", "torch"])
@pytest.mark.parametrize(
    ("name", "cut", "message"),
    [
        ("memory", lambda x: x[:1], r"memory must have the shape \(2, 2, 24, 24\), got \(1, "),
        ("conv_history", lambda x: x[:, :1], r"conv_history must have the shape \(2, 3, 144\)"),
        ("decay", lambda x: x[:, :, :1], r"decay must have the shape \(2, 70, 2\)"),
        ("gate", lambda x: x[:, :0], "the sequence is empty"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(name, cut, message, form):
    tokens, weights, states = make_case()
    given = dict(
        zip((*Projected._fields, "memory", "conv_history"), (*tokens, *states), strict=True)
    )
    given[name] = cut(given[name])
    *tokens, memory, conv_history = given.values()
    with pytest.raises(ValueError, match=message):
        mixed(tokens, weights, memory, conv_history, form=form)


@pytest.mark.parametrize("seq", [1, 5])
def test_tokens_can_be_traced(seq):
    """Without gradients they go past the dispatcher, but not with no memory behind them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    tokens, weights, _ = make_case(seq=seq)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        fake = [mode.from_tensor(x) for x in (*tokens, *weights)]
        output, memory, _ = mixed(fake[:4], fake[4:])
    assert output.shape == (2, seq, 48)
    assert memory.shape == (2, 2, 24, 24)
