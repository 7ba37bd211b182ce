"""A looped model as a scorer: what the candidates of a question share is run once.

A model with constant-size states can be stopped after the tokens that all candidates begin with and
go on from there with each. Questions whose shared part has nearly the same length run together: the
shortest of those parts is the batch's trunk, and what is left of the others goes with their
branches. Padding stands behind the branches only, where no token that is scored can see it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mixerloop.config import ComputeDtype
from mixerloop.evaluation.scorer import (
    Candidate,
    TokenScores,
    batches_by_length,
    common_prefix,
    padded,
)
from mixerloop.model.decoding import feed, start
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.ops.precision import compute_in
from mixerloop.ops.sliced_cross_entropy import token_losses
from mixerloop.schedule import Schedule

BATCH_TOKENS = 8192
STATE_BYTES = 512 * 2**20
"""Of a batch's states, of which a trunk's, its branches' and their next ones exist at a time."""
WORTH_SHARING = 16
"""Tokens; to save fewer is not worth a copy of the states."""
UNEVEN_TRUNKS = 0.005
"""How much of a batch's shared tokens may be left to its branches, where each costs several."""


class LoopedScorer:
    """Scores with a `LoopedLM`, whole sequences or trunk and branches."""

    def __init__(
        self,
        model: LoopedLM,
        *,
        schedule: Schedule | None = None,
        compute_dtype: ComputeDtype = "float32",
        share_prefixes: bool = True,
    ) -> None:
        self.vocab_size = model.config.vocab_size
        self.tokens_processed = 0
        self._model = model
        self._compute_dtype: ComputeDtype = compute_dtype
        self._schedule = model.schedule if schedule is None else schedule
        self._share_prefixes = share_prefixes
        self._device = model.embedding.weight.device
        one_state = start(model, schedule=self._schedule).nbytes()
        self._most_states = max(1, STATE_BYTES // max(1, one_state))

    @torch.inference_mode()
    def score(self, questions: Sequence[Sequence[Candidate]]) -> list[list[TokenScores]]:
        """Score every candidate."""
        sequences = [_sequences(candidates) for candidates in questions]
        alone: list[_Sequence] = []
        sharing: list[tuple[int, list[_Sequence]]] = []
        for of_question in sequences:
            scored = [one for one in of_question.values() if one.labels]
            shared = _shared_tokens(scored) if self._share_prefixes else 0
            if shared * (len(scored) - 1) >= WORTH_SHARING:
                sharing.append((shared, scored))
            else:
                alone += scored
        with compute_in(self._compute_dtype, self._device.type):
            self._score_alone(alone)
            self._score_sharing(sharing)
        return [
            [of_question[_key(one)].scores(one) for one in candidates]
            for of_question, candidates in zip(sequences, questions, strict=True)
        ]

    def _score_alone(self, sequences: "list[_Sequence]") -> None:
        lengths = [len(one.inputs) for one in sequences]
        for batch in batches_by_length(
            lengths, most_tokens=BATCH_TOKENS, most_rows=self._most_states
        ):
            chosen = [sequences[index] for index in batch]
            tokens = self._tokens([one.inputs for one in chosen])
            residual, _ = self._model.walk(self._model.embed(tokens), self._schedule)
            self._read_out(residual, chosen, skipped=0)

    def _score_sharing(self, questions: "list[tuple[int, list[_Sequence]]]") -> None:
        for batch in batches_by_length(
            [shared for shared, _ in questions],
            most_tokens=BATCH_TOKENS,
            most_rows=self._most_states,
            most_padding=UNEVEN_TRUNKS,
        ):
            trunk = min(questions[index][0] for index in batch)
            chosen = [questions[index][1] for index in batch]
            state = start(self._model, batch=len(batch), schedule=self._schedule)
            tokens = self._tokens([sequences[0].inputs[:trunk] for sequences in chosen])
            _, state = feed(self._model, tokens, state)
            branches = [(row, one) for row, ones in enumerate(chosen) for one in ones]
            lengths = [len(one.inputs) - trunk for _, one in branches]
            for part in batches_by_length(
                lengths, most_tokens=BATCH_TOKENS, most_rows=self._most_states
            ):
                rows = torch.tensor([branches[index][0] for index in part])
                ones = [branches[index][1] for index in part]
                tokens = self._tokens([one.inputs[trunk:] for one in ones])
                residual, _ = feed(self._model, tokens, state.select(rows))
                self._read_out(residual, ones, skipped=trunk)

    def _tokens(self, rows: list[np.ndarray]) -> Tensor:
        tokens = torch.from_numpy(padded(rows)).to(self._device)
        self.tokens_processed += tokens.numel()
        return tokens

    def _read_out(self, residual: Tensor, sequences: "list[_Sequence]", *, skipped: int) -> None:
        """Run the head where a scored token is predicted, and nowhere else."""
        wanted = [
            (row, first, labels)
            for row, one in enumerate(sequences)
            for first, labels in one.labels.values()
        ]
        sizes = [len(labels) for _, _, labels in wanted]
        rows = np.repeat([row for row, _, _ in wanted], sizes)
        firsts = np.repeat([first - 1 - skipped for _, first, _ in wanted], sizes)
        places = firsts + np.concatenate([np.arange(size) for size in sizes])
        labels = np.concatenate([labels for _, _, labels in wanted])
        at_row, at_place, targets = (
            torch.from_numpy(x).to(self._device) for x in (rows, places, labels)
        )
        losses, most_likely = token_losses(
            x=self._model.final_norm(residual[at_row, at_place]),
            weight=self._model.embedding.weight,
            labels=targets,
            implementation=self._model.implementation,
        )
        if not losses.isfinite().all():
            raise ValueError("the losses are not finite, so nothing is scored; are the weights?")
        parts = (
            np.split(x.cpu().numpy(), np.cumsum(sizes)[:-1]) for x in (losses.double(), most_likely)
        )
        found = (TokenScores(*scores) for scores in zip(*parts, strict=True))
        for one in sequences:
            one.found = {key: next(found) for key in one.labels}


_Key = tuple[int, bytes]
"""Where the scored tokens of a candidate begin, and which they are."""
NOTHING = TokenScores(np.empty(0), np.empty(0, dtype=np.int64))


class _Sequence:
    """What is fed for one or more candidates, which may differ in their last token, or not at all.

    Equal candidates are scored once, so that a tie is a tie.
    """

    def __init__(self, inputs: np.ndarray) -> None:
        self.inputs = inputs
        self.labels: dict[_Key, tuple[int, np.ndarray]] = {}
        self.found: dict[_Key, TokenScores] = {}

    def add(self, candidate: Candidate) -> None:
        """Have a candidate scored, if it has anything to score."""
        labels = candidate.tokens[candidate.start :]
        if len(labels):
            self.labels[candidate.start, labels.tobytes()] = candidate.start, labels

    def scores(self, candidate: Candidate) -> TokenScores:
        """What was found for a candidate."""
        labels = candidate.tokens[candidate.start :]
        return self.found[candidate.start, labels.tobytes()] if len(labels) else NOTHING


def _sequences(candidates: Sequence[Candidate]) -> dict[bytes, _Sequence]:
    """What has to be fed for the candidates of a question."""
    sequences: dict[bytes, _Sequence] = {}
    for candidate in candidates:
        sequences.setdefault(_key(candidate), _Sequence(candidate.tokens[:-1])).add(candidate)
    return sequences


def _key(candidate: Candidate) -> bytes:
    return candidate.tokens[:-1].tobytes()


def _shared_tokens(sequences: list[_Sequence]) -> int:
    """Tokens to run once: all of them come before the first that predicts a scored token."""
    if len(sequences) < 2:
        return 0
    starts = [start for one in sequences for start, _ in one.labels.values()]
    return min(common_prefix([one.inputs for one in sequences]), *(start - 1 for start in starts))
