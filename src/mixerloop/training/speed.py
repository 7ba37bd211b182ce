"""The speed of steps, beside that of plain matrix products, which is its limit."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mixerloop.config import ComputeDtype
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.training.metrics import Timing
from mixerloop.training.opened import Opened

ROUND_SECONDS = 0.03
MOST_SECONDS = 0.6
STEADY_ROUNDS = 5
"""The rate is steady when this many rounds in a row have not been faster than the best round."""
BETTER = 1.02  # a round is faster if its rate is more than this many times the best rate
LARGEST_TOKENS = 4096


def gemm_rate(
    model: LoopedLM, *, tokens: int, compute_dtype: ComputeDtype, device: torch.device
) -> float:
    """Operations per second of a product with the largest matrix of a layer.

    Short rounds are timed until the rate is steady, and the best round counts: other programs make
    a round slower and never faster.
    """
    dtype = torch.bfloat16 if compute_dtype == "bfloat16" else torch.float32
    tokens = min(tokens, LARGEST_TOKENS)
    matrices = [weight.shape for weight in model.layers[0].parameters() if weight.ndim == 2]
    width_out, width_in = max(matrices, key=lambda shape: shape.numel())
    x = torch.ones(tokens, width_in, dtype=dtype, device=device)
    weight = torch.ones(width_in, width_out, dtype=dtype, device=device)
    operations = 2 * x.numel() * weight.shape[1]
    torch.mm(x, weight)
    best, rounds_since, began = 0.0, 0, time.perf_counter()
    while rounds_since < STEADY_ROUNDS and time.perf_counter() - began < MOST_SECONDS:
        rate = operations / _seconds_per_product(x, weight)
        rounds_since = 0 if rate > BETTER * best else rounds_since + 1
        best = max(best, rate)
    return best


def _seconds_per_product(x: torch.Tensor, weight: torch.Tensor) -> float:
    """The mean time of a product over one round of `ROUND_SECONDS`."""
    products, began = 0, time.perf_counter()
    while products == 0 or time.perf_counter() - began < ROUND_SECONDS:
        torch.mm(x, weight)
        if x.device.type == "cuda":
            torch.cuda.synchronize(x.device)
        products += 1
    return (time.perf_counter() - began) / products


class Clock:
    """Seconds of training, without evaluation and checkpoints."""

    _started: float | None

    def __init__(self, seconds: float) -> None:
        self._counted, self._started = seconds, None

    def start(self) -> None:
        """Start to count, on top of the seconds of earlier sessions."""
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds of training over all sessions, until now."""
        running = 0.0 if self._started is None else time.perf_counter() - self._started
        return self._counted + running

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Do not count the time spent inside the block."""
        self._counted, self._started = self.seconds, None
        try:
            yield
        finally:
            self.start()


class Speed:
    """The speed of each step, beside that of plain matrix products."""

    def __init__(self, gemm_limit: float) -> None:
        self.gemm_limit = gemm_limit
        """Operations per second of all ranks."""

    @classmethod
    def of(cls, model: LoopedLM, opened: Opened) -> "Speed":
        """Measure the plain products of each rank."""
        rate = gemm_rate(
            model,
            tokens=opened.tokens_per_step // opened.ranks.num_ranks,
            compute_dtype=opened.recipe.train.product_dtype,
            device=opened.ranks.device,
        )
        return cls(sum(opened.ranks.total(rate)))

    def timing(
        self, step: int, *, seconds: float, tokens: int, flops: float, seconds_left: float
    ) -> Timing:
        """The speed of a step that took some seconds."""
        rate = flops / seconds
        self.gemm_limit = max(self.gemm_limit, rate)  # it was measured beside other programs
        return Timing(
            step=step,
            seconds=seconds,
            tokens_per_second=tokens / seconds,
            gemm_share=rate / self.gemm_limit,
            seconds_left=seconds_left,
            threads=torch.get_num_threads(),
        )
