"""Training: the time of a whole step over the time of its matrix products alone."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mixerloop import machine
from mixerloop.benchmarking.conditions import check_tokens_fit, config_of, provenance_of
from mixerloop.benchmarking.measure import Quartiles, interleaved
from mixerloop.benchmarking.mixer_speed import MixerCase, measure_mixers
from mixerloop.benchmarking.settings import TrainSettings
from mixerloop.benchmarking.training_steps import check_gradients, training_step
from mixerloop.config import ComputeDtype, FormChoice, ModelConfig
from mixerloop.model.initialization import fresh_model
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.notation import resolve
from mixerloop.ops.precision import choose_compute_dtype
from mixerloop.ops.sliced_cross_entropy import SLICE_TOKENS
from mixerloop.parsing import checked, one_of

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
    """The times of all loops or mixers, and the conditions they were taken under."""

    cases: tuple[TrainCase, ...]
    mixers: tuple[MixerCase, ...] = ()
    """Each mixer beside Gated DeltaNet, if mixers were named; there are no `cases` then."""
    provenance: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The JSON that `mixerloop bench train --json` prints."""
        return asdict(self)


@checked
def bench_train(
    settings: TrainSettings | None = None,
    *,
    progress: Callable[[TrainCase], None] | None = None,
) -> TrainBench:
    """Time training steps of each loop; `progress` is called with each case when it is timed.

    With mixers in the settings, their steps are timed against those of Gated DeltaNet instead.
    """
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
    cases, mixers = [], []
    for loop in settings.loops:
        if settings.mixer:
            mixers += measure_mixers(
                config,
                loop,
                [name for text in settings.mixer for name in text.split(",")],
                batch=settings.batch,
                length=settings.length,
                compute_dtype=compute_dtype,
                repeats=settings.repeats,
                form=form,
            )
            continue
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
    return TrainBench(cases=tuple(cases), mixers=tuple(mixers), provenance=provenance)


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
    check_gradients(config, compute_dtype, form)
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
