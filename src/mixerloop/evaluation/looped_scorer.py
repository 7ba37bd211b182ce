"""A looped model as a scorer: what the candidates of a question share is run once.

A model with constant-size states can be stopped after the tokens that candidates begin with and go
on from there with each. Questions whose shared part has nearly the same length run together: the
shortest of those parts is the batch's trunk, and what is left of the others goes with their
branches. Branches of many trunks run together. Padding stands behind sequences and branches only,
where no token that is scored can see it.

Batches are independent and run on all cores. What runs together depends on the questions alone, so
scores are the same bit for bit whatever the number of threads.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

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
from mixerloop.model.decoding import DecodeState, feed, side_by_side, start
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.model.sublayer import has_state
from mixerloop.ops.precision import compute_in
from mixerloop.ops.workers import map_on_cores
from mixerloop.schedule import Schedule
from mixerloop.subject import Subject

T = TypeVar("T")
Result = TypeVar("Result")
BATCH_TOKENS = 2048
"""On a CPU, where the activations of more tokens do not stay in a core's cache."""
STATE_BYTES = 64 * 2**20
"""Of the states a batch begins with; those it ends with take as much."""
ACCELERATOR_BATCH_TOKENS, ACCELERATOR_STATE_BYTES = 8192, 512 * 2**20
PADDING = 0.03
"""Of a batch; more padding costs more than another batch."""
TRUNK_STATE_BYTES = 256 * 2**20
"""Of the states of all trunks whose branches have not run yet."""
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
        self._mixing, self._afterwards = mixing_and_afterwards(model, self._schedule)
        self._share_prefixes = share_prefixes
        self._device = model.embedding.weight.device
        on_cpu = self._device.type == "cpu"
        self._most_tokens = BATCH_TOKENS if on_cpu else ACCELERATOR_BATCH_TOKENS
        self._state_bytes = STATE_BYTES if on_cpu else ACCELERATOR_STATE_BYTES
        self._most_states = self._most_trunks = 1

    def score(self, questions: Sequence[Sequence[Candidate]]) -> list[list[TokenScores]]:
        """Score every candidate."""
        self._limit_states([len(one.tokens) for candidates in questions for one in candidates])
        sequences = [_sequences(candidates) for candidates in questions]
        alone: list[_Sequence] = []
        sharing: list[_Family] = []
        for of_question in sequences:
            scored = [one for one in of_question.values() if one.labels]
            for family in _families(scored) if self._share_prefixes else [_Family(scored, 0)]:
                if family.is_worth_sharing:
                    sharing.append(family)
                else:
                    alone += family.sequences
        self._score_alone(alone)
        sharing.sort(key=lambda family: -family.shared)
        for at in range(0, len(sharing), self._most_trunks):
            self._score_sharing(sharing[at : at + self._most_trunks])
        return [
            [of_question[_key(one)].scores(one) for one in candidates]
            for of_question, candidates in zip(sequences, questions, strict=True)
        ]

    def _limit_states(self, lengths: list[int]) -> None:
        """Let a batch have as many rows as its memory holds states after the longest sequence."""
        longest = max(lengths, default=1)
        costs = [self._model.sublayer(one).cost(longest) for one in self._schedule]
        state_bytes = max(1, sum(cost.state_bytes for cost in costs))
        self._most_states = max(1, self._state_bytes // state_bytes)
        self._most_trunks = max(1, TRUNK_STATE_BYTES // state_bytes)

    def _score_alone(self, sequences: "list[_Sequence]") -> None:
        batches = self._batches(sequences, [len(one.inputs) for one in sequences])
        for tokens in self._on_cores(self._run_whole, batches):
            self.tokens_processed += tokens

    def _score_sharing(self, families: "list[_Family]") -> None:
        batches = self._batches(
            families, [family.shared for family in families], most_padding=UNEVEN_TRUNKS
        )
        trunks = list(self._on_cores(self._run_trunk, batches))
        self.tokens_processed += sum(trunk.batch * trunk.num_tokens for trunk in trunks)
        branches: list[_Branch] = []
        row = 0
        for batch, trunk in zip(batches, trunks, strict=True):
            for family in batch:
                branches += [_Branch(row, trunk.num_tokens, one) for one in family.sequences]
                row += 1
        together = side_by_side(trunks)
        del trunks
        lengths = [len(one.sequence.inputs) - one.skipped for one in branches]
        parts = self._batches(branches, lengths)
        for tokens in self._on_cores(partial(self._run_branches, together), parts):
            self.tokens_processed += tokens

    def _batches(
        self, things: Sequence[T], lengths: Sequence[int], *, most_padding: float = PADDING
    ) -> list[list[T]]:
        numbers = batches_by_length(
            lengths,
            most_tokens=self._most_tokens,
            most_rows=self._most_states,
            most_padding=most_padding,
        )
        return [[things[number] for number in batch] for batch in numbers]

    def _on_cores(self, function: Callable[[T], Result], batches: list[T]) -> Iterator[Result]:
        def run(batch: T) -> Result:
            with torch.inference_mode(), compute_in(self._compute_dtype, self._device.type):
                return function(batch)

        return map_on_cores(run, batches, device=self._device)

    def _run_whole(self, sequences: "list[_Sequence]") -> int:
        tokens = self._tokens([one.inputs for one in sequences])
        walked = self._model.walk(self._model.embed(tokens), self._mixing)
        self._read_out(walked.residual, sequences, skipped=[0] * len(sequences))
        return tokens.numel()

    def _run_trunk(self, families: "list[_Family]") -> DecodeState:
        trunk = min(family.shared for family in families)
        tokens = self._tokens([family.sequences[0].inputs[:trunk] for family in families])
        state = start(self._model, batch=len(families), schedule=self._mixing)
        _, state = feed(self._model, tokens, state)
        return state

    def _run_branches(self, trunks: DecodeState, branches: "list[_Branch]") -> int:
        state = trunks.select(torch.tensor([one.row for one in branches]))
        tokens = self._tokens([one.sequence.inputs[one.skipped :] for one in branches])
        residual, _ = feed(self._model, tokens, state)
        self._read_out(
            residual,
            [one.sequence for one in branches],
            skipped=[one.skipped for one in branches],
        )
        return tokens.numel()

    def _tokens(self, rows: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(padded(rows)).to(self._device)

    def _read_out(
        self, residual: Tensor, sequences: "list[_Sequence]", *, skipped: list[int]
    ) -> None:
        """Run what no token sees another in, and the head, where a scored token is predicted."""
        wanted = [
            (row, first - 1 - before, labels)
            for row, (one, before) in enumerate(zip(sequences, skipped, strict=True))
            for first, labels in one.labels.values()
        ]
        sizes = [len(labels) for _, _, labels in wanted]
        rows = np.repeat([row for row, _, _ in wanted], sizes)
        firsts = np.repeat([first for _, first, _ in wanted], sizes)
        places = firsts + np.concatenate([np.arange(size) for size in sizes])
        labels = np.concatenate([labels for _, _, labels in wanted])
        at_row, at_place, targets = (
            torch.from_numpy(x).to(self._device) for x in (rows, places, labels)
        )
        chosen = residual[at_row, at_place]
        if self._afterwards:
            (chosen,) = self._model.walk(chosen[None], self._afterwards).residual
        losses, most_likely = self._model.token_nll(chosen, targets)
        if not losses.isfinite().all():
            raise ValueError("the losses are not finite, so nothing is scored; are the weights?")
        parts = (
            np.split(x.cpu().numpy(), np.cumsum(sizes)[:-1]) for x in (losses.double(), most_likely)
        )
        found = (TokenScores(*scores) for scores in zip(*parts, strict=True))
        for one in sequences:
            one.found = {key: next(found) for key in one.labels}


def scorer_of(
    subject: Subject, *, schedule: Schedule | None = None, share_prefixes: bool = True
) -> LoopedScorer:
    """The scorer of a subject, in its precision and under its schedule or another one."""
    return LoopedScorer(
        subject.model,
        schedule=subject.schedule if schedule is None else schedule,
        compute_dtype=subject.compute_dtype,
        share_prefixes=share_prefixes,
    )


def mixing_and_afterwards(model: LoopedLM, schedule: Schedule) -> tuple[Schedule, Schedule]:
    """A schedule up to its last stateful occurrence, and the rest, which needs no other token.

    A pass rule may reach over the cut; the schedule of a model that has a rule is not cut.
    """
    if model.pass_rules:
        return schedule, ()
    stateful = [
        at
        for at, occurrence in enumerate(schedule)
        if occurrence.sublayer == "mixer" or has_state(model.sublayer(occurrence))
    ]
    last = max(stateful, default=-1)
    return schedule[: last + 1], schedule[last + 1 :]


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


class _Family(NamedTuple):
    """Sequences of a question that begin alike."""

    sequences: list[_Sequence]
    shared: int
    """Tokens to run once."""

    @property
    def is_worth_sharing(self) -> bool:
        return self.shared * (len(self.sequences) - 1) >= WORTH_SHARING


class _Branch(NamedTuple):
    """What is left of a sequence after its trunk."""

    row: int
    """Of the trunk, among all trunks."""
    skipped: int
    """Tokens of the trunk."""
    sequence: _Sequence


def _families(sequences: list[_Sequence]) -> list[_Family]:
    """All sequences of a question or, where not all begin alike, those that do.

    Candidates of different lengths are cropped to different beginnings, those of one length are
    not.
    """
    whole = _Family(sequences, _shared_tokens(sequences))
    if whole.is_worth_sharing:
        return [whole]
    alike: dict[bytes, list[_Sequence]] = {}
    for one in sequences:
        alike.setdefault(one.inputs[:WORTH_SHARING].tobytes(), []).append(one)
    return [_Family(family, _shared_tokens(family)) for family in alike.values()]


def _shared_tokens(sequences: list[_Sequence]) -> int:
    """Tokens to run once: all of them come before the first that predicts a scored token."""
    if len(sequences) < 2:
        return 0
    starts = [start for one in sequences for start, _ in one.labels.values()]
    return min(common_prefix([one.inputs for one in sequences]), *(start - 1 for start in starts))
