"""What a step computes does not depend on how the work is cut."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import needs
from mixerloop.data.batches import Batch
from mixerloop.model.initialization import fresh_model
from mixerloop.training.depth import Depth
from mixerloop.training.freezing import train_only, trained_weights
from mixerloop.training.loss import Loss
from mixerloop.training.optimizer import make_optimizer
from mixerloop.training.parallel import ParallelLoss, Ranks
from mixerloop.training.step import Computation, accumulate, clip
from stacks import SIZES, STACKS, stack_config

SAME = 1e-10  # float64, relative to the largest value: sums in another order
CLIP = 0.1  # below the norm this gradient has


def batch_of(tokens, labels):
    return Batch(0, np.asarray(tokens), np.asarray(labels))


@pytest.fixture
def batch():
    generator = np.random.default_rng(0)
    tokens = generator.integers(50, size=(8, 70))
    labels = generator.integers(50, size=(8, 70))
    labels[generator.random(labels.shape) < 0.4] = -100  # some micro-batches score more than others
    return batch_of(tokens, labels)


def updated(config, batch, *, micro_batch, recompute=False, dtype=torch.float64):
    model = fresh_model(config, seed=1).to(dtype)
    engine = ParallelLoss(Loss(model, recompute=recompute), ranks=Ranks(), parallel="ddp")
    optimizer = make_optimizer(model, peak_lr=1e-2, weight_decay=0.1)
    computation = Computation(micro_batch=micro_batch, compute_dtype="float32", ranks=Ranks())
    summed, scored, *_ = accumulate(engine, batch, computation)
    norm = clip(list(model.parameters()), CLIP)
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    optimizer.step()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    return weights, gradients, summed / scored, norm


def test_one_by_eight_two_by_four_and_eight_by_one_are_the_same_update(tiny, batch):
    weights, gradients, loss, norm = updated(tiny, batch, micro_batch=8)
    for micro_batch in (1, 3, 4):
        others = updated(tiny, batch, micro_batch=micro_batch)
        assert others[2] == pytest.approx(loss, rel=SAME)
        assert others[3] == pytest.approx(norm, rel=SAME)
        for mine, their in ((weights, others[0]), (gradients, others[1])):
            for name, tensor in mine.items():
                largest = tensor.abs().max().item()
                torch.testing.assert_close(
                    their[name], tensor, rtol=0, atol=SAME * largest, msg=name
                )


@pytest.mark.parametrize("stack", sorted(STACKS))
def test_no_stack_learns_otherwise_in_micro_batches(stack, batch):
    """Also those with a balance loss, which couples all tokens of a step."""
    config, tokens = stack_config(stack), batch.inputs % SIZES["vocab_size"]
    labels = np.where(batch.labels == -100, -100, tokens)
    whole, threes, ones = (
        updated(config, batch_of(tokens, labels), micro_batch=size)[1] for size in (8, 3, 1)
    )
    for name, gradient in whole.items():
        for other in (threes, ones):
            torch.testing.assert_close(other[name], gradient, rtol=0, atol=SAME, msg=name)


def test_the_gradient_is_that_of_the_mean_cross_entropy(tiny, batch):
    model = fresh_model(tiny, seed=1).double()
    tokens, labels = torch.from_numpy(batch.inputs), torch.from_numpy(batch.labels)
    loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=-100)
    loss.backward()
    parameters = list(model.parameters())
    torch.nn.utils.clip_grad_norm_(parameters, CLIP)
    _, gradients, mine, _ = updated(tiny, batch, micro_batch=2)
    assert mine == pytest.approx(loss.item(), rel=SAME)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("loop", "pass_residual"),
    [("no_loop", "none"), ("mixer_loop", "mixer"), ("full_loop", "none"), ("ffn_loop", "mixer")],
)
def test_recomputing_changes_no_bit(tiny, batch, loop, pass_residual):
    config = tiny.changed(schedule=loop, pass_residual=pass_residual)
    kept = updated(config, batch, micro_batch=4, dtype=torch.float32)
    recomputed = updated(config, batch, micro_batch=4, recompute=True, dtype=torch.float32)
    for name, gradient in kept[1].items():
        assert torch.equal(gradient, recomputed[1][name]), name
    assert kept[2:] == recomputed[2:]


def test_recomputing_keeps_less(tiny):
    def kept_bytes(recompute):
        loss = Loss(fresh_model(tiny, seed=0), recompute=recompute)
        kept = {}

        def keep(tensor):
            kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        tokens = torch.zeros(2, 70, dtype=torch.int64)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            result = loss(tokens, tokens).total
        assert result.requires_grad
        return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())

    assert kept_bytes(recompute=True) < kept_bytes(recompute=False) / 3


def test_a_gradient_longer_than_the_limit_is_scaled_to_it(tiny, batch):
    _, gradients, _, norm = updated(tiny, batch, micro_batch=8)
    assert norm > CLIP
    total = torch.stack([gradient.norm() for gradient in gradients.values()]).norm().item()
    assert total == pytest.approx(CLIP, rel=1e-4)  # torch divides by the norm + 1e-6


def test_weights_that_never_run_are_left_alone(tiny, batch):
    model = fresh_model(replace(tiny, schedule="3x(A)"), seed=1)
    train_only(model, trained_weights(model, [Depth(model.schedule)]))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    engine = ParallelLoss(Loss(model), ranks=Ranks(), parallel="ddp")
    optimizer = make_optimizer(model, peak_lr=1e-2, weight_decay=0.1)
    computation = Computation(micro_batch=8, compute_dtype="float32", ranks=Ranks())
    accumulate(engine, batch, computation)
    optimizer.step()
    for name, parameter in model.named_parameters():
        moved = not torch.equal(parameter, before[name])
        assert moved == ("ffn" not in name), name


@pytest.mark.filterwarnings("ignore")  # the compiler warns of its own workings
@pytest.mark.usefixtures("shapes_unchecked")  # the compiler cannot trace the checks
@pytest.mark.parametrize("mixer", ["gated_delta_net", "kimi_delta"])
def test_a_compiled_sublayer_is_a_single_graph(mixer):
    layer = fresh_model(stack_config(mixer), seed=0, form="torch").layers[0]
    compiled = torch.compile(layer, backend="eager", fullgraph=True)  # raises if a graph breaks
    with torch.no_grad():
        assert compiled(torch.randn(1, 5, 16), "mixer").update.shape == (1, 5, 16)


@pytest.mark.slow
@needs.COMPILER.mark
@pytest.mark.filterwarnings("ignore")  # the compiler warns of its own workings
@pytest.mark.usefixtures("shapes_unchecked")  # the compiler cannot trace the checks
def test_compiled_layers_give_the_same_gradient(tiny):
    config = replace(tiny, num_layers=1, schedule="mixer_loop(2)")
    tokens = torch.arange(2 * 20).reshape(2, 20)
    gradients = []
    for compiled in (False, True):
        model = fresh_model(config, seed=1)
        if compiled:
            model.layers[0].compile()
        Loss(model)(tokens, tokens).total.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    plain, same = gradients
    for name, gradient in plain.items():
        torch.testing.assert_close(same[name], gradient, rtol=1e-4, atol=1e-5, msg=name)
