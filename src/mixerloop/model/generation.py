"""Sampling: one token after another from a decode state."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mixerloop.config import ComputeDtype, check_seed
from mixerloop.draws import Draws
from mixerloop.model.decoding import advance, prefill, start
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.ops.precision import check_finite, compute_in
from mixerloop.parsing import checked
from mixerloop.schedule import Schedule

MOST_TOKENS = 10**9


@checked
@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is drawn."""

    temperature: float = 1.0
    """Divides the logits; 0 takes the most likely token."""
    top_k: int | None = None
    """Draw from this many of the most likely tokens."""
    top_p: float | None = None
    """Draw from the fewest tokens that hold this much probability."""

    def __post_init__(self) -> None:
        """Reject options that leave no distribution to draw from."""
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be 0 or more, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")


def check_max_tokens(max_tokens: int) -> None:
    """Reject a number of tokens that would take years to generate."""
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    if max_tokens > MOST_TOKENS:
        raise ValueError(f"max_tokens must be at most {MOST_TOKENS:,}, got {max_tokens}")


@torch.inference_mode()
def generate(
    model: LoopedLM,
    prompt: Int[Tensor, "batch seq"],
    *,
    max_tokens: int,
    sampling: Sampling,
    seed: int,
    schedule: Schedule | None = None,
    compute_dtype: ComputeDtype = "float32",
    num_ids: int | None = None,
) -> Iterator[Int[Tensor, " batch"]]:
    """Yield the next token of every sequence, `max_tokens` times; the caller may stop earlier.

    `num_ids` keeps to the first ids, for a tokenizer that is smaller than the embedding.
    """
    check_max_tokens(max_tokens)
    draws = Draws("sampling", check_seed(seed))
    state = start(model, batch=prompt.shape[0], schedule=schedule)
    with compute_in(compute_dtype, prompt.device.type):
        logits, state = prefill(model, prompt, state)
    for index in range(max_tokens):
        tokens = draw(logits[:, :num_ids], sampling, draws)
        yield tokens
        if index + 1 < max_tokens:
            with compute_in(compute_dtype, prompt.device.type):
                logits, state = advance(model, tokens[:, None], state)
            logits = logits[:, -1]


def draw(
    logits: Float[Tensor, "batch vocab"], sampling: Sampling, draws: Draws
) -> Int[Tensor, " batch"]:
    """One token per row."""
    check_finite(logits, what="logits")
    if sampling.temperature == 0:
        return logits.argmax(-1)
    below_best = logits.double() - logits.max(-1, keepdim=True).values
    probabilities = (below_best / sampling.temperature).softmax(-1)
    ranked, order = probabilities.sort(dim=-1, descending=True, stable=True)
    if sampling.top_k is not None:
        ranked[:, sampling.top_k :] = 0
    if sampling.top_p is not None:  # a token stays while the tokens before it hold less than top_p
        ranked[ranked.cumsum(-1) - ranked >= sampling.top_p * ranked.sum(-1, keepdim=True)] = 0
    up_to = ranked.cumsum(-1)
    wanted = torch.from_numpy(draws.uniforms(len(ranked))).to(ranked.device) * up_to[:, -1]
    return order.gather(-1, torch.searchsorted(up_to, wanted[:, None]))[:, 0]
