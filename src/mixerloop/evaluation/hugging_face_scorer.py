"""Any causal language model of `transformers` as a scorer, every sequence whole."""

from collections.abc import Sequence
from typing import Any

import torch

from mixerloop.evaluation.scorer import Candidate, TokenScores, batches_by_length, padded

BATCH_TOKENS = 2048
"""All logits of a batch exist at once."""
MOST_ROWS = 64


class HuggingFaceScorer:
    """Scores with a model that takes `input_ids` and returns `logits`.

    Rows are padded behind their last token, which a causal model cannot see; no mask is needed.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        if model.training:
            raise ValueError("the model is in training mode; call its eval() first")
        config: Any = model.config
        self.vocab_size = int(config.vocab_size)
        self.tokens_processed = 0
        self._model = model
        self._device = next(model.parameters()).device

    @torch.inference_mode()
    def score(self, questions: Sequence[Sequence[Candidate]]) -> list[list[TokenScores]]:
        """Score every candidate; equal ones once, so that a tie is a tie."""
        unique = {_key(one): one for candidates in questions for one in candidates}
        flat = list(unique.values())
        found: dict[tuple[bytes, int], TokenScores] = {}
        for batch in batches_by_length(
            [len(one.tokens) - 1 for one in flat], most_tokens=BATCH_TOKENS, most_rows=MOST_ROWS
        ):
            tokens = torch.from_numpy(padded([flat[index].tokens[:-1] for index in batch]))
            self.tokens_processed += tokens.numel()
            logits = self._model(input_ids=tokens.to(self._device)).logits
            for row, index in zip(logits, batch, strict=True):
                found[_key(flat[index])] = _scores(row, flat[index])
        return [[found[_key(one)] for one in candidates] for candidates in questions]


def _key(candidate: Candidate) -> tuple[bytes, int]:
    return candidate.tokens.tobytes(), candidate.start


def _scores(logits: torch.Tensor, candidate: Candidate) -> TokenScores:
    start, stop = candidate.start, len(candidate.tokens)
    at = logits[start - 1 : stop - 1].double()
    labels = torch.from_numpy(candidate.tokens[start:]).to(at.device)
    losses = torch.nn.functional.cross_entropy(at, labels, reduction="none")
    if not losses.isfinite().all():
        raise ValueError("the losses are not finite, so nothing is scored; are the weights?")
    return TokenScores(losses.cpu().numpy(), at.argmax(-1).cpu().numpy())
