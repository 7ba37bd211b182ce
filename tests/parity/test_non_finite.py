"""A number that is not finite does to the fast forms what it does to the definition.

Where the definition has a finite number the fast forms have the same number: in earlier tokens,
other heads, other sequences and other columns of the value. Where it has NaN or an infinity they
have NaN or an infinity, not always the same.
"""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import needs
from mixerloop.ops.gated_delta_mixing import MixingWeights, Projected, gated_delta_mixing
from mixerloop.ops.gated_delta_rule import gated_delta_rule
from mixerloop.ops.sliced_cross_entropy import sliced_cross_entropy, token_losses
from rule_cases import GATED_DELTA_RULE, make_inputs

FAST_FORMS = ["torch", pytest.param("native", marks=needs.KERNEL.mark)]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5}  # relative to the largest finite value
NOT_FINITE = [math.nan, math.inf, -math.inf]
LENGTHS = [1, 2, 15, 16, 17, 63, 64, 65, 129]
RULE = ["query", "key", "value", "log_decay", "write_strength", "initial_state"]
TOKENS = ["qkv", "gate", "decay", "write"]
MIXING = [*TOKENS, "conv", "A_log", "dt_bias", "norm", "memory", "conv_history"]


def rule_case(seed, seq, dtype):
    draw = random.Random(seed)
    sizes = draw.randint(1, 20), draw.randint(1, 20)
    inputs = make_inputs(**GATED_DELTA_RULE, seq=seq, sizes=sizes, batch=2, seed=seed)
    return {name: tensor.to(dtype) for name, tensor in inputs.items()}


def place(tensor, number, seed):
    """Put a number somewhere in the tensor; returns the index of that place."""
    draw = random.Random(seed)
    index = tuple(draw.randrange(size) for size in tensor.shape)
    tensor[index] = number
    return index


def assert_same(got, wanted, *, tolerance, also_not_finite):
    for name, reference in wanted.items():
        found = got[name].double()
        finite = reference.isfinite()
        assert bool(found[finite].isfinite().all()), name
        if also_not_finite:
            assert not bool(found[~finite].isfinite().any()), name
        if finite.any():
            error = (found - reference)[finite].abs().max().item()
            scale = max(1.0, reference[finite].abs().max().item())
            assert error <= tolerance * scale, f"{name}: {error:.2e}"


def run_rule(inputs, form, cotangent):
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    output, state = gated_delta_rule(**leaves, form=form)
    gradients = torch.autograd.grad(
        [output, state],
        list(leaves.values()),
        [cotangent.to(output.dtype), torch.zeros_like(state)],
    )
    named = {f"d_{name}": x for name, x in zip(leaves, gradients, strict=True)}
    return {"output": output.detach(), "state": state.detach()}, named


def compare_rules(inputs, form, *, read, dtype):
    """Outputs and gradients of a sum over the outputs in `read` against the definition's."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(inputs["value"].shape, generator=generator, dtype=torch.float64)
    cotangent = torch.zeros_like(drawn)
    cotangent[read] = drawn[read]
    wide = {name: tensor.double() for name, tensor in inputs.items()}
    wanted, d_wanted = run_rule(wide, "definition", cotangent)
    got, d_got = run_rule(inputs, form, cotangent)
    assert_same(got, wanted, tolerance=TOLERANCE[dtype], also_not_finite=True)
    assert_same(d_got, d_wanted, tolerance=TOLERANCE[dtype], also_not_finite=False)
    return wanted, d_wanted


def numbers(name):
    return st.sampled_from(
        [*NOT_FINITE, -math.inf, -math.inf] if name == "log_decay" else NOT_FINITE
    )


def poisoned(names):
    return st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), numbers(name)))


LENGTH = st.one_of(st.sampled_from(LENGTHS), st.integers(1, 200))
CASE = {
    "seed": st.integers(0, 2**31),
    "seq": LENGTH,
    "dtype": st.sampled_from(list(TOLERANCE)),
    "places": st.lists(poisoned(RULE), min_size=1, max_size=2),
    "reads_columns": st.booleans(),
}


def check_rule(form, seed, seq, dtype, places, reads_columns):
    """The loss reads tokens before the first place, or half of the columns of all tokens."""
    inputs = rule_case(seed, seq, dtype)
    first = seq
    for number, (name, value) in enumerate(places):
        index = place(inputs[name], value, seed + number)
        first = first if name == "initial_state" else min(first, index[1])
    half = inputs["value"].shape[-1] // 2
    read = (..., slice(half, None)) if reads_columns else (slice(None), slice(0, first))
    compare_rules(inputs, form, read=read, dtype=dtype)


@pytest.mark.parametrize("form", FAST_FORMS)
@settings(max_examples=12)
@given(**CASE)
def test_the_rule_agrees_with_its_definition(form, seed, seq, dtype, places, reads_columns):
    check_rule(form, seed, seq, dtype, places, reads_columns)


@pytest.mark.slow
@needs.KERNEL.mark
def test_the_rule_agrees_on_every_instruction_set(instruction_set):
    @settings(max_examples=150)
    @given(**CASE)
    def check(**case):
        check_rule("native", **case)

    check()


@pytest.mark.slow
@settings(max_examples=150)
@given(**CASE)
def test_the_chunked_rule_agrees_in_many_cases(seed, seq, dtype, places, reads_columns):
    check_rule("torch", seed, seq, dtype, places, reads_columns)


@pytest.mark.parametrize("form", FAST_FORMS)
@pytest.mark.parametrize("name", ["key", "value", "log_decay", "write_strength"])
def test_earlier_tokens_other_heads_and_sequences_stay_as_they_are(name, form):
    token, seq = 37, 70
    clean = rule_case(3, seq, torch.float64)
    inputs = {key: tensor.clone() for key, tensor in clean.items()}
    inputs[name][1, token, 0] = math.nan
    (output, state), (wanted, _) = (gated_delta_rule(**x, form=form) for x in (inputs, clean))
    untouched = torch.ones(2, seq, 2, dtype=torch.bool)
    untouched[1, token:, 0] = False
    torch.testing.assert_close(output[untouched], wanted[untouched], rtol=0, atol=1e-12)
    assert not output[~untouched].isfinite().any()
    assert not state[1, 0].isfinite().any()
    assert state[0].isfinite().all()


@pytest.mark.parametrize("form", FAST_FORMS)
@pytest.mark.parametrize("name", ["value", "key"])
def test_gradients_of_earlier_outputs_do_not_see_a_later_token(name, form):
    """Those of a value: all of them. Those of a key: the queries', as in the definition."""
    token, seq = 37, 70
    inputs = rule_case(3, seq, torch.float64)
    inputs[name][1, token, 0, 0] = math.nan
    read = (slice(None), slice(0, token))
    _, wanted = compare_rules(inputs, form, read=read, dtype=torch.float64)
    seen = RULE[:5] if name == "value" else ["query"]
    for each in seen:
        assert wanted[f"d_{each}"][:, :token].isfinite().all()
        assert wanted[f"d_{each}"][1, :token, 0].abs().max() > 0


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("form", FAST_FORMS)
@pytest.mark.parametrize("log_decay", [-math.inf, -1e30, -1e5])
def test_a_log_decay_of_minus_infinity_forgets_and_weak_decays_keep_their_digits(
    log_decay, form, dtype
):
    inputs = rule_case(5, 100, dtype)
    inputs["log_decay"][:, ::7] = log_decay
    wanted, gradients = compare_rules(inputs, form, read=..., dtype=dtype)
    for tensor in (*wanted.values(), *gradients.values()):
        assert tensor.isfinite().all()


def test_a_state_whose_sum_overflows_is_no_broken_state():
    inputs = rule_case(5, 70, torch.float32)
    inputs["value"] *= 1e37
    inputs["initial_state"] *= 0
    wanted, state = gated_delta_rule(**inputs, form="definition")
    got, _ = gated_delta_rule(**inputs, form="torch")
    assert state.isfinite().all()
    torch.testing.assert_close(got / 1e37, wanted / 1e37, rtol=0, atol=TOLERANCE[torch.float32])


@pytest.mark.parametrize("form", FAST_FORMS)
@pytest.mark.parametrize("log_decay", [80.0, 300.0, 1e30])
def test_a_log_decay_above_zero_grows_until_it_is_infinite(log_decay, form):
    inputs = rule_case(5, 40, torch.float32)
    inputs["log_decay"][:, 20] = log_decay
    wanted = gated_delta_rule(**inputs, form="definition")[0]
    got = gated_delta_rule(**inputs, form=form)[0]
    tolerance = TOLERANCE[torch.float32]
    wanted = {"output": wanted.double()}
    assert_same({"output": got}, wanted, tolerance=tolerance, also_not_finite=True)
    assert wanted["output"][:, :20].isfinite().all()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own forward mode
@pytest.mark.parametrize("derivative", [torch.func.jvp, torch.func.vmap])
def test_transforms_of_the_chunked_rule_keep_earlier_tokens(derivative):
    token, inputs = 37, rule_case(3, 70, torch.float64)
    inputs["value"][1, token, 0, 0] = math.nan
    given = tuple(inputs.values())

    def run(form):
        def rule(*tensors):
            return gated_delta_rule(**dict(zip(RULE, tensors, strict=True)), form=form)[0]

        if derivative is torch.func.vmap:
            return torch.func.vmap(rule)(*(x[None] for x in given))[0]
        return torch.func.jvp(rule, given, given)[1]

    got, wanted = {"output": run("torch")}, {"output": run("definition")}
    assert wanted["output"][:, :token].isfinite().all()
    assert_same(got, wanted, tolerance=1e-10, also_not_finite=True)


def mixing_case(seed, seq):
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    batch, heads, d_key, width = 2, 2, draw.randint(1, 12), draw.randint(2, 5)
    d_value = draw.choice([d_key, draw.randint(1, 12)])
    channels = heads * (2 * d_key + d_value)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    tensors = (
        *(normal(batch, seq, channels), normal(batch, seq, heads * d_value)),
        *(normal(batch, seq, heads), normal(batch, seq, heads)),
        *(0.5 * normal(channels, width), 0.3 * normal(heads)),
        *(normal(heads), 1 + 0.2 * normal(d_value)),
        *(normal(batch, heads, d_key, d_value), normal(batch, width - 1, channels)),
    )
    return dict(zip(MIXING, tensors, strict=True))


def run_mixing(tensors, form, first):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors.values()]
    results = gated_delta_mixing(
        Projected(*leaves[:4]),
        MixingWeights(*leaves[4:8]),
        norm_eps=1e-5,
        form=form,
        memory=leaves[8],
        conv_history=leaves[9],
    )
    gradients = torch.autograd.grad(results[0][:, :first].sum(), leaves, allow_unused=True)
    named = {f"d_{name}": x for name, x in zip(tensors, gradients, strict=True) if x is not None}
    outputs = dict(zip(("output", "memory", "history"), results, strict=True))
    return {name: x.detach() for name, x in outputs.items()}, named


@pytest.mark.parametrize("form", FAST_FORMS)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**31), seq=st.integers(1, 90), poison=poisoned(MIXING))
def test_the_mixer_agrees_with_its_definition(form, seed, seq, poison):
    """An infinite memory is left out: its outputs may be NaN or infinite, and the norm makes NaN of
    a whole row for the first and zeros of the rest of the row for the second."""
    name, value = poison
    tensors = mixing_case(seed, seq)
    index = place(tensors[name], math.nan if name == "memory" else value, seed)
    first = index[1] if name in TOKENS else seq
    wanted, d_wanted = run_mixing(tensors, "definition", first)
    got, d_got = run_mixing(tensors, form, first)
    assert_same(got, wanted, tolerance=1e-10, also_not_finite=True)
    assert_same(d_got, d_wanted, tolerance=1e-10, also_not_finite=False)


@pytest.mark.parametrize("form", FAST_FORMS)
@pytest.mark.parametrize("number", NOT_FINITE)
def test_a_token_reaches_no_loss_but_its_own(number, form):
    x, weight, others = torch.randn(5, 4), torch.randn(7, 4), [0, 2, 3, 4]
    labels = torch.tensor([1, -100, 3, 0, 6])
    wanted = sliced_cross_entropy(x=x, weight=weight, labels=labels, form=form)
    each, _ = token_losses(x=x, weight=weight, labels=labels.abs() % 7, form=form)
    x[1, 2] = number
    leaf = x.clone().requires_grad_()
    total = sliced_cross_entropy(x=leaf, weight=weight, labels=labels, form=form)
    torch.testing.assert_close(total, wanted)
    (d_x,) = torch.autograd.grad(total, leaf)
    assert d_x[others].isfinite().all()
    losses, _ = token_losses(x=x, weight=weight, labels=labels.abs() % 7, form=form)
    torch.testing.assert_close(losses[others], each[others])
    assert not losses[1].isfinite()
