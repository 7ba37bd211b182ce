"""How many operations this machine does in plain matrix products: the limit training is held to."""

import time

import torch

from mixerloop.config import ComputeDtype
from mixerloop.model.looped_lm import LoopedLM

ROUND_SECONDS = 0.03
MOST_SECONDS = 0.6
STEADY_ROUNDS = 5
"""The rate is steady when this many rounds have brought no better one."""
BETTER = 1.02
LARGEST_TOKENS = 4096


def gemm_rate(
    model: LoopedLM, *, tokens: int, compute_dtype: ComputeDtype, device: torch.device
) -> float:
    """Operations a second of a product with the largest matrix of a layer, undisturbed.

    The best of short rounds, until none is better: a neighbour makes rounds slower, none faster.
    """
    dtype = torch.bfloat16 if compute_dtype == "bfloat16" else torch.float32
    tokens = min(tokens, LARGEST_TOKENS)
    matrices = [one.shape for one in model.layers[0].parameters() if one.ndim == 2]
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
    """The mean over one round."""
    products, began = 0, time.perf_counter()
    while products == 0 or time.perf_counter() - began < ROUND_SECONDS:
        torch.mm(x, weight)
        if x.device.type == "cuda":
            torch.cuda.synchronize(x.device)
        products += 1
    return (time.perf_counter() - began) / products
