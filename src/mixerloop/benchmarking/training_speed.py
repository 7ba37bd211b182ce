"""Training: the time of a whole step over the time of its matrix products alone."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mixerloop import machine
from mixerloop.benchmarking.conditions import check_tokens_fit, config_of, provenance_of
from mixerloop.benchmarking.measure import Quartiles, interleaved
from mixerloop.benchmarking.settings import TrainSettings
from mixerloop.config import ComputeDtype, FormChoice, ModelConfig
from mixerloop.data.batches import Batch
from mixerloop.model.initialization import fresh_model
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.notation import resolve
from mixerloop.ops.precision import choose_compute_dtype
from mixerloop.ops.sliced_cross_entropy import SLICE_TOKENS
from mixerloop.parsing import one_of
from mixerloop.training.gradients import Computation, accumulate, clip
from mixerloop.training.loss import SummedLoss
from mixerloop.training.optimizer import make_optimizer
from mixerloop.training.parallel import ParallelLoss, Ranks

PEAK_LR, WEIGHT_DECAY, CLIP_NORM = 5e-4, 0.1, 1.0
CHECKED_TOKENS = 80
AGREE = 1e-3  # relative to the norm of a parameter's gradient, in float32
SMALLEST = 1e-5  # relative to the norm of the whole gradient; anything smaller is rounding
Product = tuple[int, int, int]
"""The sizes of a matrix product: tokens, inputs, outputs."""


@dataclass(frozen=True, kw_only=True)
class TrainCase:
    """One loop: the time of a whole step, and of its matrix products alone."""

    size: str
    loop: str
    batch: int
    length: int
    compute_dtype: ComputeDtype
    step_milliseconds: Quartiles
    gemm_milliseconds: Quartiles
    tokens_per_second: float
    gemm_floor_ratio: float
    """Step time over the time of the matrix products of its projections and its head."""
    gemm_floor_ratio_quartiles: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class TrainBench:
    """The times of all loops, and the conditions they were taken under."""

    cases: tuple[TrainCase, ...]
    provenance: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The JSON that `mixerloop bench train --json` prints."""
        return asdict(self)


def bench_train(
    settings: TrainSettings | None = None,
    *,
    progress: Callable[[TrainCase], None] | None = None,
) -> TrainBench:
    """Time training steps of each loop; `progress` is called with each case when it is timed."""
    settings = TrainSettings() if settings is None else settings
    settings.check()
    machine.keep_freed_memory()
    form = one_of(FormChoice, settings.form, "form")
    config = config_of(settings.size)
    most = max(len(resolve(loop, config.num_layers)) for loop in settings.loops)
    what = f"batch = {settings.batch:,}, length = {settings.length:,}"
    check_tokens_fit(config, settings.batch * settings.length, residuals=most, what=what)
    compute_dtype = choose_compute_dtype(settings.compute_dtype, "cpu")
    neighbours = machine.Neighbours()
    cases = []
    for loop in settings.loops:
        case = measure_training(
            settings.size,
            config,
            loop,
            batch=settings.batch,
            length=settings.length,
            compute_dtype=compute_dtype,
            repeats=settings.repeats,
            form=form,
        )
        cases.append(case)
        if progress is not None:
            progress(case)
    provenance = provenance_of(
        neighbours, compute_dtype=compute_dtype, repeats=settings.repeats, form=form
    )
    return TrainBench(cases=tuple(cases), provenance=provenance)


def measure_training(
    size: str,
    config: ModelConfig,
    loop: str,
    *,
    batch: int,
    length: int,
    compute_dtype: ComputeDtype,
    repeats: int,
    form: FormChoice = "auto",
) -> TrainCase:
    """Check gradients against the torch form in float32, then time steps and matrix products."""
    config = replace(config, schedule=loop)
    _check(config, compute_dtype, form)
    model = fresh_model(config, seed=0, form=form)
    step = training_step(model, batch, length, compute_dtype)
    products = all_products(list(products_of(model, batch * length)), compute_dtype)
    times = interleaved({"step": step, "products": products}, warmup=1, repeats=repeats)
    ratio = times["step"].over(times["products"])
    step_milliseconds = times["step"].milliseconds
    return TrainCase(
        size=size,
        loop=loop,
        batch=batch,
        length=length,
        compute_dtype=compute_dtype,
        step_milliseconds=step_milliseconds,
        gemm_milliseconds=times["products"].milliseconds,
        tokens_per_second=1e3 * batch * length / step_milliseconds.median,
        gemm_floor_ratio=ratio.median,
        gemm_floor_ratio_quartiles=(ratio.lower, ratio.upper),
    )


def training_step(
    model: LoopedLM, batch: int, length: int, compute_dtype: ComputeDtype
) -> Callable[[], None]:
    """A function that runs a training step without reading a batch: gradient, clipping, update."""
    ranks = Ranks()
    engine = ParallelLoss(SummedLoss(model), ranks=ranks, parallel="ddp")
    optimizer = make_optimizer(model, peak_lr=PEAK_LR, weight_decay=WEIGHT_DECAY)
    computation = Computation(micro_batch=batch, compute_dtype=compute_dtype, ranks=ranks)
    windows = _windows(model.config.vocab_size, batch, length)
    parameters = list(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        accumulate(engine, windows, computation)
        clip(parameters, CLIP_NORM)
        optimizer.step()

    return step


def products_of(model: LoopedLM, tokens: int) -> Iterator[Product]:
    """The matrix products of a forward pass: those of each occurrence, and of each head slice."""
    for occurrence in model.schedule:
        layer = model.layers[occurrence.layer]
        sublayer = layer.mixer if occurrence.sublayer == "mixer" else layer.ffn
        assert isinstance(sublayer, nn.Module)
        for module in sublayer.modules():
            if isinstance(module, nn.Linear):
                yield tokens, module.in_features, module.out_features
    for at in range(0, tokens, SLICE_TOKENS):
        yield min(SLICE_TOKENS, tokens - at), model.config.d_model, model.config.vocab_size


def all_products(products: list[Product], compute_dtype: ComputeDtype) -> Callable[[], None]:
    """A function that runs only the matrix products of a forward and a backward pass.

    Results go to memory that is allocated beforehand, so the time includes no allocation.
    """
    dtype = torch.bfloat16 if compute_dtype == "bfloat16" else torch.float32
    operands: dict[Product, tuple[Tensor, ...]] = {}
    for tokens, inputs, outputs in set(products):
        shapes = (tokens, inputs), (outputs, inputs), (tokens, outputs)
        operands[tokens, inputs, outputs] = (
            *(torch.randn(shape).to(dtype) for shape in shapes),
            *(torch.empty(shape, dtype=dtype) for shape in shapes),
        )

    def run() -> None:
        for product in products:
            x, weight, d_y, d_x, d_weight, y = operands[product]
            torch.mm(x, weight.T, out=y)
            torch.mm(d_y, weight, out=d_x)
            torch.mm(d_y.T, x, out=d_weight)

    return run


def _check(config: ModelConfig, compute_dtype: ComputeDtype, form: FormChoice) -> None:
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
    engine = ParallelLoss(SummedLoss(model), ranks=ranks, parallel="ddp")
    computation = Computation(micro_batch=1, compute_dtype=compute_dtype, ranks=ranks)
    accumulate(engine, _windows(config.vocab_size, 1, CHECKED_TOKENS), computation)
    named = ((name, parameter.grad) for name, parameter in model.named_parameters())
    return {name: grad.flatten() for name, grad in named if grad is not None}


def _windows(vocab_size: int, batch: int, length: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab_size, (batch, length + 1), generator=generator).numpy()
    return Batch(step=0, inputs=tokens[:, :-1].copy(), labels=tokens[:, 1:].copy())
