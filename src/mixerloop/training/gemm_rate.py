"""How many operations this machine does in plain matrix products: the limit training is held to."""

import time

import torch

from mixerloop.config import ComputeDtype, ModelConfig

SECONDS = 0.2
LARGEST_TOKENS = 4096


def gemm_rate(
    config: ModelConfig, *, tokens: int, compute_dtype: ComputeDtype, device: torch.device
) -> float:
    """Operations a second of a product with the shape of this model's ffn."""
    dtype = torch.bfloat16 if compute_dtype == "bfloat16" else torch.float32
    tokens = min(tokens, LARGEST_TOKENS)
    x = torch.ones(tokens, config.d_model, dtype=dtype, device=device)
    weight = torch.ones(config.d_model, 2 * config.d_ffn, dtype=dtype, device=device)
    products, began = -1, time.perf_counter()  # the first one is not counted
    while products < 1 or time.perf_counter() - began < SECONDS:
        torch.mm(x, weight)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        products += 1
        if products == 0:
            began = time.perf_counter()
    seconds = time.perf_counter() - began
    return 2 * x.numel() * weight.shape[1] * products / seconds
