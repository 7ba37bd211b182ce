"""The sliced head and loss against torch's own cross-entropy over all logits."""

import pytest
import torch
import torch.nn.functional as F

import needs
from mixerloop.ops import sliced_cross_entropy as module
from mixerloop.ops.sliced_cross_entropy import NOT_SCORED, sliced_cross_entropy, token_losses

FORMS = ["torch", pytest.param("native", marks=needs.KERNEL.mark)]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}  # relative to the largest value


def make_inputs(num_tokens, dtype, d_model=24, vocab=70):
    generator = torch.Generator().manual_seed(num_tokens)
    x = torch.randn(num_tokens, d_model, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(vocab, d_model, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(vocab, (num_tokens,), generator=generator)
    labels[::3] = NOT_SCORED
    return x.requires_grad_(), weight.requires_grad_(), labels


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 100])
def test_losses_and_gradients_match_the_whole(monkeypatch, num_tokens, form, dtype):
    monkeypatch.setattr(module, "SLICE_TOKENS", 16)
    x, weight, labels = make_inputs(num_tokens, dtype)
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, weight)]
    expected = F.cross_entropy(F.linear(*wide), labels, reduction="sum")
    loss = sliced_cross_entropy(x=x, weight=weight, labels=labels, form=form)
    assert loss.item() == pytest.approx(expected.item(), rel=TOLERANCE[dtype], abs=1e-12)
    got = torch.autograd.grad(3 * loss, [x, weight])
    wanted = torch.autograd.grad(3 * expected, wide)
    for one, other in zip(got, wanted, strict=True):
        bound = TOLERANCE[dtype] * max(1.0, other.abs().max().item())
        assert (one.double() - other).abs().max() <= bound

    losses, most_likely = token_losses(x=x, weight=weight, labels=labels, form=form)
    logits = F.linear(*wide).detach()
    expected = F.cross_entropy(logits, labels, reduction="none")
    bound = TOLERANCE[dtype] * float(expected.abs().max() + 1)
    torch.testing.assert_close(losses.double(), expected, rtol=0, atol=bound)
    assert torch.equal(most_likely, logits.argmax(-1))
    assert not losses.requires_grad


@pytest.mark.parametrize("form", FORMS)
def test_tokens_without_a_label_have_no_loss_and_no_gradient(form):
    x, weight, labels = make_inputs(20, torch.float64)
    labels[:] = NOT_SCORED
    loss = sliced_cross_entropy(x=x, weight=weight, labels=labels, form=form)
    d_x, d_weight = torch.autograd.grad(loss, [x, weight])
    assert loss == 0
    assert not d_x.any()
    assert not d_weight.any()


@pytest.mark.parametrize("form", FORMS)
def test_autocast_rounds_the_products_and_nothing_else(form):
    x, weight, labels = make_inputs(200, torch.float32)
    exact = sliced_cross_entropy(x=x, weight=weight, labels=labels)
    with torch.autocast("cpu", torch.bfloat16):
        near = sliced_cross_entropy(x=x, weight=weight, labels=labels, form=form)
    assert near.dtype == torch.float32
    assert near != exact
    assert near.item() == pytest.approx(exact.item(), rel=2.0**-8)
    one, other = (torch.autograd.grad(loss, [x, weight])[1] for loss in (exact, near))
    assert other.dtype == torch.float32
    # bfloat16 keeps 8 bits of inputs and of the gradient of the logits
    assert (one - other).norm() < 2.0**-6 * one.norm()


def test_no_tensor_of_all_logits_is_made():
    from mixerloop.benchmarking.measure import peak_bytes

    x = torch.randn(4096, 8, requires_grad=True)
    weight = torch.randn(1000, 8, requires_grad=True)
    labels = torch.randint(1000, (4096,))

    def sliced():
        return torch.autograd.grad(
            sliced_cross_entropy(x=x, weight=weight, labels=labels), [x, weight]
        )

    assert peak_bytes(sliced) < 4096 * 1000 * 4 * 0.6


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize(
    ("weight", "labels", "message"),
    [
        (torch.zeros(5, 2), torch.zeros(4), "do not fit"),
        (torch.zeros(5, 3), torch.zeros(5), "labels must have the shape"),
        *(
            (
                *(torch.zeros(5, 3), torch.tensor([0, label, 4, NOT_SCORED])),
                f"label {label} is outside the vocabulary of 5",
            )
            for label in (5, -1, -5)
        ),
    ],
)
def test_what_does_not_fit_is_refused(weight, labels, message):
    with pytest.raises(ValueError, match=message):
        sliced_cross_entropy(x=torch.zeros(4, 3), weight=weight, labels=labels.long())


@needs.KERNEL.mark
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_rows_on_every_instruction_set(instruction_set, dtype):
    logits = (torch.randn(21, 77, dtype=torch.float64) * 5).to(dtype)
    labels = torch.randint(77, (21,))
    labels[::4] = NOT_SCORED
    wanted, d_wanted = module._torch(logits.double().clone(), labels, with_gradient=True)
    place = logits.clone()
    losses = module._native(place, labels, True)
    bound = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 2e-6}[dtype]
    assert (losses.double() - wanted).abs().max() <= bound * wanted.abs().max()
    assert (place.double() - d_wanted).abs().max() <= max(bound, torch.finfo(dtype).eps)
    place = logits.clone()
    assert torch.equal(module._native(place, labels, False), losses)


@pytest.mark.parametrize("form", FORMS)
def test_without_gradients_none_are_computed(monkeypatch, form):
    asked = []
    for name in ("_torch", "_native", "_run_native"):
        real = getattr(module, name)

        def watch(*arguments, real=real, **named):
            asked.append(named.get("with_gradient", arguments[-1]))
            return real(*arguments, **named)

        monkeypatch.setattr(module, name, watch)
    x, weight, labels = make_inputs(20, torch.float32)
    with torch.no_grad():
        loss = sliced_cross_entropy(x=x, weight=weight, labels=labels, form=form)
    assert asked == [False]
    assert not loss.requires_grad


@needs.KERNEL.mark
def test_torch_knows_the_operator():
    torch.library.opcheck(
        torch.ops.mixerloop.cross_entropy_.default,
        (torch.randn(5, 9), torch.randint(9, (5,)), True),
        test_utils=("test_schema", "test_faketensor"),
    )
