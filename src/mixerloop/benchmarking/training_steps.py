"""A training step to be timed, and the check of its gradients before."""

from collections.abc import Callable

import torch
from torch import Tensor

from mixerloop.config import ComputeDtype, FormChoice, ModelConfig
from mixerloop.data.batches import Batch
from mixerloop.model.initialization import fresh_model
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.training.loss import Loss
from mixerloop.training.optimizer import make_optimizer
from mixerloop.training.parallel import ParallelLoss, Ranks
from mixerloop.training.step import Computation, accumulate, clip

PEAK_LR, WEIGHT_DECAY, CLIP_NORM = 5e-4, 0.1, 1.0
CHECKED_TOKENS = 80
AGREE = 1e-3  # relative to the norm of a parameter's gradient, in float32
SMALLEST = 1e-5  # relative to the norm of the whole gradient; anything smaller is rounding


def training_step(
    model: LoopedLM, batch: int, length: int, compute_dtype: ComputeDtype
) -> Callable[[], None]:
    """A function that runs a training step without reading a batch: gradient, clipping, update."""
    ranks = Ranks()
    engine = ParallelLoss(Loss(model), ranks=ranks, parallel="ddp")
    optimizer = make_optimizer(model, peak_lr=PEAK_LR, weight_decay=WEIGHT_DECAY)
    computation = Computation(micro_batch=batch, compute_dtype=compute_dtype, ranks=ranks)
    windows = made_windows(model.config.vocab_size, batch, length)
    parameters = list(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        accumulate(engine, windows, computation)
        clip(parameters, CLIP_NORM)
        optimizer.step()

    return step


def check_gradients(config: ModelConfig, compute_dtype: ComputeDtype, form: FormChoice) -> None:
    """Check gradients against the torch form in float32.

    In float32 the gradient of each parameter must agree. In bfloat16 the error of the whole
    gradient may be 1.5 times the error of the torch form in bfloat16.
    """
    wanted = _gradients(config, "float32", "torch")
    whole = torch.cat(list(wanted.values()))
    for name, got in _gradients(config, "float32", form).items():
        off = (got - wanted[name]).norm() / wanted[name].norm().clamp_min(SMALLEST * whole.norm())
        _check_error(AGREE, float(off), f"{config.schedule}: the gradient of {name}")
    if compute_dtype == "float32":
        return
    torchs, ours = (
        float((torch.cat(list(gradients.values())) - whole).norm() / whole.norm())
        for gradients in (_gradients(config, compute_dtype, form) for form in ("torch", form))
    )
    _check_error(1.5 * torchs, ours, f"{config.schedule}: the gradient in {compute_dtype}")


def _check_error(bound: float, off: float, what: str) -> None:
    if not off <= bound:
        raise FloatingPointError(f"{what} is off by {off:.1e} of its length, more than {bound:.1e}")


def _gradients(
    config: ModelConfig, compute_dtype: ComputeDtype, form: FormChoice
) -> dict[str, Tensor]:
    model, ranks = fresh_model(config, seed=0, form=form), Ranks()
    engine = ParallelLoss(Loss(model), ranks=ranks, parallel="ddp")
    computation = Computation(micro_batch=1, compute_dtype=compute_dtype, ranks=ranks)
    accumulate(engine, made_windows(config.vocab_size, 1, CHECKED_TOKENS), computation)
    named = ((name, parameter.grad) for name, parameter in model.named_parameters())
    return {name: grad.flatten() for name, grad in named if grad is not None}


def made_windows(vocab_size: int, batch: int, length: int) -> Batch:
    """Windows of token ids that are drawn at random."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab_size, (batch, length + 1), generator=generator).numpy()
    return Batch(step=0, inputs=tokens[:, :-1].copy(), labels=tokens[:, 1:].copy())
