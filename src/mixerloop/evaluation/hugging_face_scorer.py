"""A scorer for any causal language model of `transformers`, without shared prefixes."""

from collections.abc import Sequence
from typing import Any

import torch

from mixerloop.evaluation.scorer import Candidate, TokenScores, batches_by_length, padded
from mixerloop.ops.precision import check_finite

BATCH_TOKENS = 2048
"""A limit on memory, because all logits of a batch exist at once."""
MOST_ROWS = 64


class HuggingFaceScorer:
    """Scores with a model that takes `input_ids` and returns `logits`.

    Rows are padded after their last token. A causal model cannot see padding there, so no mask is
    needed.
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
        """Score every candidate; equal candidates are scored once, so their scores are equal."""
        unique = {_key(candidate): candidate for question in questions for candidate in question}
        flat = list(unique.values())
        scores: dict[tuple[bytes, int], TokenScores] = {}
        for batch in batches_by_length(
            [len(candidate.tokens) - 1 for candidate in flat],
            most_tokens=BATCH_TOKENS,
            most_rows=MOST_ROWS,
        ):
            tokens = torch.from_numpy(padded([flat[index].tokens[:-1] for index in batch]))
            self.tokens_processed += tokens.numel()
            logits = self._model(input_ids=tokens.to(self._device)).logits
            for row, index in zip(logits, batch, strict=True):
                scores[_key(flat[index])] = _scores(row, flat[index])
        return [[scores[_key(candidate)] for candidate in question] for question in questions]


def _key(candidate: Candidate) -> tuple[bytes, int]:
    return candidate.tokens.tobytes(), candidate.start


def _scores(logits: torch.Tensor, candidate: Candidate) -> TokenScores:
    start, stop = candidate.start, len(candidate.tokens)
    chosen = logits[start - 1 : stop - 1].double()
    labels = torch.from_numpy(candidate.tokens[start:]).to(chosen.device)
    losses = torch.nn.functional.cross_entropy(chosen, labels, reduction="none")
    check_finite(losses, what="losses")
    return TokenScores(losses.cpu().numpy(), chosen.argmax(-1).cpu().numpy())
