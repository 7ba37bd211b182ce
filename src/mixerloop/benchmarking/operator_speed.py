"""The gated delta rule: our forms beside the CPU implementations of other packages."""

import importlib.util
import inspect
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerloop import machine
from mixerloop.benchmarking.conditions import provenance_of
from mixerloop.benchmarking.measure import Quartiles, Timing, check_close, interleaved
from mixerloop.benchmarking.settings import OperatorSettings
from mixerloop.config import Form
from mixerloop.ops import native_library
from mixerloop.ops.gated_delta_rule import gated_delta_rule

Inputs = dict[str, Tensor]
Rule = Callable[[Inputs], tuple[Tensor, Tensor]]
Shape = tuple[int, int, int, int]

SHAPES: dict[str, Shape] = {
    "15m": (4, 1024, 4, 72),
    "110m": (2, 1024, 12, 64),
    "long": (1, 8192, 4, 72),
}
"""Each shape is batch, tokens, heads and head size."""
OURS: tuple[Form, ...] = ("native", "torch")
PEERS = {"transformers": "transformers", "fla_naive": "fla"}
AGREE = 1e-4  # float32, two orders of summation


@dataclass(frozen=True, kw_only=True)
class OperatorCase:
    """One shape: milliseconds of each form, and the speedup of our best form."""

    name: str
    shape: Shape
    forward: dict[str, Quartiles]
    forward_backward: dict[str, Quartiles]
    best: str
    ratio_forward: float | None
    """Time of the `transformers` fallback over our best form; None if it is not installed."""
    ratio_forward_backward: float | None
    ratio_forward_quartiles: tuple[float, float] | None
    ratio_forward_backward_quartiles: tuple[float, float] | None
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class OperatorBench:
    """The times of all shapes, and the conditions they were taken under."""

    shapes: tuple[OperatorCase, ...]
    provenance: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The JSON that `mixerloop bench operator --json` prints."""
        return asdict(self)


def bench_operator(settings: OperatorSettings | None = None) -> OperatorBench:
    """Time the forms of the gated delta rule beside those of other packages."""
    settings = OperatorSettings() if settings is None else settings
    settings.check()
    neighbours = machine.Neighbours()
    shapes = tuple(
        measure_operator(
            name, SHAPES[name], repeats=settings.repeats, strong_decay=settings.strong_decay
        )
        for name in settings.shapes
    )
    provenance = provenance_of(neighbours, compute_dtype="float32", repeats=settings.repeats)
    return OperatorBench(shapes=shapes, provenance=provenance)


def measure_operator(
    name: str, shape: Shape, *, repeats: int, strong_decay: bool = False
) -> OperatorCase:
    """Check that all forms compute the same result, then time them in turn."""
    inputs = make_inputs(shape, strong_decay=strong_decay)
    rules, missing = rules_here()
    scaled = inputs | {"query": inputs["query"] * shape[-1] ** 0.5}
    inputs_of = {key: scaled if key == "transformers" else inputs for key in rules}
    cotangents = [torch.randn_like(tensor) for tensor in (inputs["value"], inputs["initial_state"])]

    @torch.no_grad()
    def forward(key: str) -> tuple[Tensor, ...]:
        return rules[key](inputs_of[key])

    def forward_backward(key: str) -> tuple[Tensor, ...]:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs_of[key].items()}
        return torch.autograd.grad(rules[key](leaves), list(leaves.values()), cotangents)

    wanted = (*forward("torch"), *forward_backward("torch"))
    for key in rules:
        d_query, *gradients = forward_backward(key)
        if key == "transformers":
            d_query = d_query * shape[-1] ** 0.5
        for got, right in zip((*forward(key), d_query, *gradients), wanted, strict=True):
            check_close(f"{name}: {key}", got, right, tolerance=AGREE)
    times = interleaved(
        {
            (key, run): (lambda key=key, run=run: run(key))
            for key in rules
            for run in (forward, forward_backward)
        },
        warmup=2,
        repeats=repeats,
    )
    alone = {key: times[key, forward] for key in rules}
    both = {key: times[key, forward_backward] for key in rules}
    best = min((key for key in OURS if key in rules), key=lambda key: both[key].milliseconds)
    ratio, ratio_both = (_ratio(timings, best) for timings in (alone, both))
    return OperatorCase(
        name=name,
        shape=shape,
        forward={key: timing.milliseconds for key, timing in alone.items()},
        forward_backward={key: timing.milliseconds for key, timing in both.items()},
        best=best,
        ratio_forward=ratio and ratio.median,
        ratio_forward_backward=ratio_both and ratio_both.median,
        ratio_forward_quartiles=ratio and ratio[1:],
        ratio_forward_backward_quartiles=ratio_both and ratio_both[1:],
        missing=missing,
    )


def _ratio(times: dict[str, Timing], best: str) -> Quartiles | None:
    return times["transformers"].over(times[best]) if "transformers" in times else None


def rules_here() -> tuple[dict[str, Rule], list[str]]:
    """The implementations that this machine can run, and the names of those that it cannot."""
    rules = {
        name: ours(name)
        for name in OURS
        if name != "native" or native_library.library() is not None
    }
    missing = [name for name in OURS if name not in rules]
    for name, package in PEERS.items():
        if importlib.util.find_spec(package) is None:
            missing.append(name)
        else:
            rules[name] = _transformers() if name == "transformers" else _fla_naive()
    return rules, missing


def make_inputs(shape: Shape, *, strong_decay: bool = False) -> Inputs:
    """Random inputs; strong decays, down to -8, make products that underflow in float32."""
    batch, seq, heads, d_head = shape
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    gates = (batch, seq, heads)
    strong = -(torch.rand(gates, generator=generator) ** 4) * 8
    return {
        "query": F.normalize(normal(*gates, d_head), dim=-1) * d_head**-0.5,
        "key": F.normalize(normal(*gates, d_head), dim=-1),
        "value": normal(*gates, d_head),
        "log_decay": strong if strong_decay else -normal(*gates).square() / 8,
        "write_strength": normal(*gates).sigmoid(),
        "initial_state": normal(batch, heads, d_head, d_head),
    }


def ours(form: Form) -> Rule:
    """Our operator in one of its forms."""
    return lambda inputs: gated_delta_rule(**inputs, form=form)


def _transformers() -> Rule:
    """The fallback that `transformers` runs without a GPU."""
    with warnings.catch_warnings():  # transformers imports fla, which warns if there is no GPU
        warnings.simplefilter("ignore")
        from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    rule = inspect.unwrap(torch_chunk_gated_delta_rule)

    def run(inputs: Inputs) -> tuple[Tensor, Tensor]:
        return rule(
            inputs["query"],  # transformers scales the query, so its input is not scaled
            inputs["key"],
            inputs["value"],
            g=inputs["log_decay"],
            beta=inputs["write_strength"],
            initial_state=inputs["initial_state"],
            output_final_state=True,
            use_qk_l2norm_in_kernel=False,
        )

    return run


def _fla_naive() -> Rule:
    """The plain implementation that `fla-core` tests its kernels against."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule

    def run(inputs: Inputs) -> tuple[Tensor, Tensor]:
        output, state = naive_chunk_gated_delta_rule(
            inputs["query"],
            inputs["key"],
            inputs["value"],
            g=inputs["log_decay"],
            beta=inputs["write_strength"],
            scale=1.0,
            initial_state=inputs["initial_state"],
            output_final_state=True,
        )
        assert state is not None
        return output, state

    return run
