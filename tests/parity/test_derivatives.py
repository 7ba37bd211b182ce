"""Every derivative torch can be asked for, of every operator and form: right, or refused.

The oracle is the definition, in operations that torch differentiates itself.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vmap

import needs
from mixerloop.ops import chunked, fla
from mixerloop.ops.gated_delta_mixing import (
    MixingWeights,
    Projected,
    gated_delta_mixing,
    mixing_without_context,
)
from mixerloop.ops.gated_delta_rule import gated_delta_rule
from mixerloop.ops.linear_attention import linear_attention
from mixerloop.ops.rms_norm import rms_norm
from mixerloop.ops.short_convolution import short_convolution
from mixerloop.ops.sliced_cross_entropy import sliced_cross_entropy, token_losses
from mixerloop.ops.swiglu import swiglu

# A loop over the batch takes the place of a batching rule of the native operators.
pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
    pytest.mark.filterwarnings(
        "ignore:`torch.jit.script` is deprecated"
    ),  # torch's own forward mode
]

TOLERANCE = 1e-10  # float64, relative to the largest value and never below one
EPS = 1e-5
LABELS = torch.tensor([1, 0, -100, 5])


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def uniform(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64)


def rule_inputs(seq: int = 6, *, heads: int = 2, d_key: int = 3, d_value: int = 2) -> list[Tensor]:
    return [
        normal(1, seq, heads, d_key),
        F.normalize(normal(1, seq, heads, d_key), dim=-1),
        normal(1, seq, heads, d_value),
        -uniform(1, seq, heads),
        uniform(1, seq, heads),
        normal(1, heads, d_key, d_value),
    ]


def rule(*tensors: Tensor, form: Any) -> tuple[Tensor, ...]:
    names = ("query", "key", "value", "log_decay", "write_strength", "initial_state")
    return gated_delta_rule(**dict(zip(names, tensors, strict=True)), form=form)


def family_inputs(seq: int = 6) -> list[Tensor]:
    query, key, value, _, _, state = rule_inputs(seq)
    return [query, key, value, -uniform(*key.shape), uniform(*key.shape) * key, state]


def family(*tensors: Tensor, form: Any) -> tuple[Tensor, ...]:
    names = ("query", "key", "value", "log_decay", "erase_key", "initial_state")
    return linear_attention(**dict(zip(names, tensors, strict=True)), form=form)


def mixing_inputs(*, seq: int = 5, d_key: int = 3, d_value: int = 3) -> list[Tensor]:
    channels, width = 2 * d_key + d_value, 3
    return [
        *(normal(1, seq, channels), normal(1, seq, d_value), normal(1, seq, 1), normal(1, seq, 1)),
        *(normal(channels, width), 0.3 * normal(1), normal(1), 1 + 0.2 * normal(d_value)),
    ]


def mixing(*tensors: Tensor, form: Any) -> tuple[Tensor, ...]:
    return gated_delta_mixing(
        Projected(*tensors[:4]), MixingWeights(*tensors[4:]), norm_eps=EPS, form=form
    )


def alone(*tensors: Tensor) -> tuple[Tensor, ...]:
    return (
        mixing_without_context(Projected(*tensors[:4]), MixingWeights(*tensors[4:]), norm_eps=EPS),
    )


def norm(x: Tensor, weight: Tensor, form: Any) -> tuple[Tensor, ...]:
    if form == "definition":
        return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight,)
    return (rms_norm(x, weight, eps=EPS, form=form),)


def gated(gate_up: Tensor, form: Any) -> tuple[Tensor, ...]:
    if form == "definition":
        gate, up = gate_up.chunk(2, dim=-1)
        return (gate * gate.sigmoid() * up,)
    return (swiglu(gate_up, form=form),)


def loss(x: Tensor, weight: Tensor, form: Any) -> tuple[Tensor, ...]:
    if form == "definition":
        return (F.cross_entropy(x @ weight.T, LABELS, reduction="sum"),)
    return (sliced_cross_entropy(x=x, weight=weight, labels=LABELS, form=form),)


def convolution(x: Tensor, weight: Tensor, history: Tensor) -> tuple[Tensor, ...]:
    return short_convolution(x=x, weight=weight, history=history)


class Operator(NamedTuple):
    function: Callable[..., tuple[Tensor, ...]]
    inputs: Callable[[], list[Tensor]]
    rejects: str  # the operator that the errors of the native form name
    instead: str = "form torch or definition"


OPERATORS = {
    "gated_delta_rule": Operator(rule, rule_inputs, "gated_delta_rule"),
    "gated_delta_rule of a token": Operator(rule, lambda: rule_inputs(1), "gated_delta_rule"),
    "linear_attention": Operator(family, family_inputs, "linear_attention"),
    "gated_delta_mixing": Operator(mixing, mixing_inputs, "gated_delta_mixing"),
    "gated_delta_mixing of unequal widths": Operator(
        mixing, lambda: mixing_inputs(d_value=2), "gated_delta_rule"
    ),
    "rms_norm": Operator(norm, lambda: [normal(3, 5), normal(5)], "rms_norm", "form torch$"),
    "swiglu": Operator(gated, lambda: [normal(3, 6)], "swiglu", "form torch$"),
    "sliced_cross_entropy": Operator(
        loss, lambda: [normal(4, 3), normal(6, 3)], "sliced_cross_entropy", "form torch$"
    ),
}
FAST_FORMS = ["torch", pytest.param("native", marks=needs.KERNEL.mark)]
every_operator = pytest.mark.parametrize("name", OPERATORS)
every_form = pytest.mark.parametrize("form", FAST_FORMS)


def scalar(function):
    """A sum of outputs with curvature of its own, so that cotangents depend on the inputs too."""

    def weighted(*inputs):
        return sum(
            (x.sin() * torch.arange(1.0, x.numel() + 1).reshape(x.shape)).sum()
            for x in function(*inputs)
        )

    return weighted


def gradients(outputs: Any, inputs: Any, *cotangents: Any, **options: Any) -> Any:
    return torch.autograd.grad(outputs, inputs, *cotangents, materialize_grads=True, **options)


def directions(like) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in like)


def leaves(inputs):
    return [x.clone().requires_grad_() for x in inputs]


def all_of(inputs) -> tuple[int, ...]:
    return tuple(range(len(inputs)))


def gradient_of_a_gradient(function, inputs):
    xs = leaves(inputs)
    first = gradients(scalar(function)(*xs), xs, create_graph=True)
    along = sum((d * v).sum() for d, v in zip(first, directions(xs), strict=True))
    return gradients(along, xs)


def gradient_of_a_gradient_of_a_plain_sum(function, inputs):
    """The cotangent is constant: `once_differentiable` detaches such gradients silently."""
    xs = leaves(inputs)
    total = sum((x * x.detach()).sum() for x in function(*xs))
    first = gradients(total, xs, create_graph=True)
    return gradients(sum((d**2).sum() for d in first), xs)


def gradient_by_the_cotangent(function, inputs):
    xs = leaves(inputs)
    outputs = function(*xs)
    cotangents = [torch.ones_like(x).requires_grad_() for x in outputs]
    first = gradients(outputs, xs, cotangents, create_graph=True)
    along = sum((d * v).sum() for d, v in zip(first, directions(xs), strict=True))
    return gradients(along, cotangents)


def dual_tensors(function, inputs):
    with forward_ad.dual_level():
        outputs = function(*map(forward_ad.make_dual, inputs, directions(inputs)))
        return [forward_ad.unpack_dual(x).tangent for x in outputs]


def dual_tensors_without_gradients(function, inputs):
    with torch.no_grad():
        return dual_tensors(function, inputs)


def dual_cotangent(function, inputs):
    xs = leaves(inputs)
    outputs = function(*xs)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(torch.ones_like(x), torch.ones_like(x)) for x in outputs]
        found = gradients(outputs, xs, duals, create_graph=True)
        tangents = [forward_ad.unpack_dual(x).tangent for x in found]
        return [
            torch.zeros_like(x) if x_t is None else x_t for x, x_t in zip(xs, tangents, strict=True)
        ]


def func_jvp(function, inputs):
    return jvp(function, tuple(inputs), directions(inputs))[1]


def func_grad(function, inputs):
    return grad(scalar(function), argnums=all_of(inputs))(*inputs)


def func_jvp_of_grad(function, inputs):
    first = grad(scalar(function), argnums=all_of(inputs))
    return jvp(first, tuple(inputs), directions(inputs))[1]


def func_grad_of_jvp(function, inputs):
    def along(*xs):
        return jvp(scalar(function), xs, directions(inputs))[1]

    return grad(along, argnums=all_of(inputs))(*inputs)


def func_hessian(function, inputs):
    return [hessian(scalar(function))(*inputs)]


def func_vmap_of_grad(function, inputs):
    pairs = [torch.stack([x, 0.5 * x]) for x in inputs]
    return vmap(grad(scalar(function), argnums=all_of(inputs)))(*pairs)


def func_grad_of_vmap(function, inputs):
    pairs = [torch.stack([x, 0.5 * x]) for x in inputs]
    return grad(scalar(vmap(function)), argnums=all_of(inputs))(*pairs)


DERIVATIVES = [
    gradient_of_a_gradient,
    gradient_of_a_gradient_of_a_plain_sum,
    gradient_by_the_cotangent,
    dual_tensors,
    dual_tensors_without_gradients,
    dual_cotangent,
    func_jvp,
    func_grad,
    func_jvp_of_grad,
    func_grad_of_jvp,
    func_hessian,
    func_vmap_of_grad,
    func_grad_of_vmap,
]


def in_form(name: str, form: str):
    return lambda *inputs: OPERATORS[name].function(*inputs, form=form)


def assert_close(got, wanted):
    for one, other in zip(got, wanted, strict=True):
        assert one is not None
        error = (one - other).abs().max().item()
        assert error <= TOLERANCE * max(1.0, other.abs().max().item())


def assert_rejected(name, derivative):
    operator = OPERATORS[name]
    message = f"{operator.rejects}: form native has no .*; use {operator.instead}"
    with pytest.raises(ValueError, match=message):
        derivative(in_form(name, "native"), operator.inputs())


@every_form
@every_operator
def test_gradients_match_finite_differences(name, form):
    inputs = leaves(OPERATORS[name].inputs())
    assert torch.autograd.gradcheck(in_form(name, form), inputs, fast_mode=True)


@pytest.mark.parametrize("derivative", DERIVATIVES)
@every_form
@every_operator
def test_a_derivative_is_right_or_refused(name, form, derivative):
    if form == "native":
        assert_rejected(name, derivative)
    else:
        inputs = OPERATORS[name].inputs()
        wanted = derivative(in_form(name, "definition"), inputs)
        assert_close(derivative(in_form(name, form), inputs), wanted)


def test_operators_in_torch_alone_have_second_and_forward_derivatives():
    without_context = leaves(mixing_inputs())
    history = leaves([normal(1, 5, 3), normal(3, 3), normal(1, 2, 3)])
    for function, inputs in ((alone, without_context), (convolution, history)):
        assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True, fast_mode=True)
        assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@settings(max_examples=10)
@given(seq=st.integers(1, 13), chunk_tokens=st.integers(1, 6), heads=st.integers(1, 2))
def test_lengths_that_do_not_divide_the_chunk_have_the_same_derivatives(seq, chunk_tokens, heads):
    inputs = rule_inputs(seq, heads=heads)
    definition = in_form("gated_delta_rule", "definition")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "CHUNK_TOKENS", chunk_tokens)
        for derivative in (gradient_of_a_gradient, gradient_by_the_cotangent, func_jvp, func_grad):
            got = derivative(in_form("gated_delta_rule", "torch"), inputs)
            assert_close(got, derivative(definition, inputs))


@every_form
def test_an_input_may_be_computed_from_another_input(form):
    _, *others = rule_inputs()
    query = normal(1, 6, 2, 3)

    def curvature(form):
        x = query.clone().requires_grad_()
        outputs = rule(x, F.normalize(x, dim=-1), *others[1:], form=form)
        (first,) = gradients(sum(y.square().sum() for y in outputs), x, create_graph=True)
        return gradients(first.square().sum(), x)

    if form == "native":
        with pytest.raises(ValueError, match="form native has no second derivative"):
            curvature(form)
    else:
        assert_close(curvature(form), curvature("definition"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler warns of its own workings
@pytest.mark.usefixtures("shapes_unchecked")  # the compiler cannot trace the checks
@every_form
@pytest.mark.parametrize("derivative", [dual_tensors, func_jvp])
def test_forward_mode_of_compiled_code_is_right_or_refused(form, derivative):
    inputs = rule_inputs()
    compiled = torch.compile(in_form("gated_delta_rule", form), backend="eager")
    if form == "native":
        with pytest.raises(ValueError, match="form native has no forward-mode derivative"):
            derivative(compiled, inputs)
    else:
        wanted = derivative(in_form("gated_delta_rule", "definition"), inputs)
        assert_close(derivative(compiled, inputs), wanted)


@needs.KERNEL.mark
def test_a_kept_graph_alone_is_no_second_derivative():
    xs = leaves(rule_inputs())
    outputs = rule(*xs, form="native")
    kept = gradients(outputs, xs, [torch.ones_like(x) for x in outputs], create_graph=True)
    wanted = rule(*xs, form="definition")
    assert_close(kept, gradients(wanted, xs, [torch.ones_like(x) for x in wanted]))


@every_form
@every_operator
def test_an_open_level_without_tangents_changes_nothing(name, form):
    inputs = OPERATORS[name].inputs()
    wanted = in_form(name, form)(*inputs)
    with forward_ad.dual_level():
        assert_close(in_form(name, form)(*inputs), wanted)


@every_form
@every_operator
def test_vmap_runs_over_a_batch_and_keeps_gradients(name, form):
    pairs = [torch.stack([x, 0.5 * x]) for x in OPERATORS[name].inputs()]
    if (name, form) == ("sliced_cross_entropy", "native"):
        with pytest.raises(
            ValueError, match="form native does not run inside vmap; use form torch"
        ):
            vmap(in_form(name, form))(*pairs)
        return
    found = []
    for run in (vmap(in_form(name, form)), vmap(in_form(name, "definition"))):
        xs = leaves(pairs)
        outputs = run(*xs)
        found.append([*outputs, *gradients(scalar(lambda *y: y)(*outputs), xs)])
    assert_close(*found)


@every_form
@every_operator
def test_a_batch_of_cotangents_is_right_or_refused(name, form):
    def batched(form):
        torch.manual_seed(0)
        xs = leaves(OPERATORS[name].inputs())
        output, *_ = in_form(name, form)(*xs)
        batch = torch.stack([torch.ones_like(output), output.detach()])
        found = torch.autograd.grad(output, xs, batch, is_grads_batched=True, allow_unused=True)
        return [x for x in found if x is not None]

    refused = name.startswith("gated_delta") and "of a token" not in name and form == "torch"
    if refused or (name, form) == ("gated_delta_mixing", "native"):
        with pytest.raises(ValueError, match=rf"form {form} takes no batch of cotangents"):
            batched(form)
    else:
        assert_close(batched(form), batched("definition"))


@every_form
@pytest.mark.parametrize("derivative", [dual_tensors, func_grad])
def test_losses_of_tokens_have_no_derivatives(form, derivative):
    def losses(x, weight):
        return (token_losses(x=x, weight=weight, labels=LABELS, form=form)[0],)

    with pytest.raises(ValueError, match=r"token_losses: .*; use sliced_cross_entropy"):
        derivative(losses, [normal(4, 3), normal(6, 3)])


def test_derivatives_that_fla_lacks_are_refused(monkeypatch):
    """Its kernels need a GPU: their place is taken by a function that loses its second derivative,
    as they do."""

    def kernel(*, q, k, v, g, beta, scale, initial_state, output_final_state):
        class Detached(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *inputs):
                ctx.save_for_backward(*inputs)
                return rule(*inputs, form="definition")

            @staticmethod
            def backward(ctx, *d_results):
                with torch.enable_grad():
                    xs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
                    return gradients(rule(*xs, form="definition"), xs, d_results)

        return Detached.apply(q, k, v, g, beta, initial_state)

    def run(*inputs):
        names = ("query", "key", "value", "log_decay", "write_strength", "initial_state")
        return fla.fla_gated_delta_rule(**dict(zip(names, inputs, strict=True)))

    monkeypatch.setattr(fla, "_kernel", lambda member, sort: kernel)
    inputs = [x.float() for x in rule_inputs()]
    xs, others = leaves(inputs), leaves(inputs)
    got = gradients(scalar(run)(*xs), xs)
    wanted = gradients(scalar(in_form("gated_delta_rule", "definition"))(*others), others)
    for one, other in itertools.zip_longest(got, wanted):
        torch.testing.assert_close(one, other)
    refused = "gated_delta_rule: form fla has no .*; use form torch or definition"
    for derivative in DERIVATIVES:
        with pytest.raises(ValueError, match=refused):
            derivative(run, inputs)
