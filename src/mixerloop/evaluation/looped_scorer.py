"""A scorer for looped models that runs the common prefix of a question's candidates once.

A model runs the common prefix (the trunk), and then resumes from its
states with the rest of each candidate (a branch). Questions whose common prefixes have nearly the
same length run as one batch. The trunk of the batch has the length of the shortest of these
prefixes; the remaining tokens of longer prefixes run as part of the branches. Branches of many
trunks run together. Only sequences and branches are padded, and only at their end, where no scored
token can see the padding.

Batches are independent and run on all cores. The division into batches depends on the questions
alone, so scores are the same bit for bit on any number of threads.
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
from mixerloop.ops.precision import check_finite, compute_in
from mixerloop.ops.workers import map_on_cores
from mixerloop.schedule import Schedule
from mixerloop.subject import Subject

T = TypeVar("T")
Result = TypeVar("Result")
BATCH_TOKENS = 2048
"""The limit on a CPU; the activations of more tokens do not fit in a core's cache."""
STATE_BYTES = 64 * 2**20
"""The limit for the states a batch starts from; the states it ends with take the same again."""
ACCELERATOR_BATCH_TOKENS, ACCELERATOR_STATE_BYTES = 8192, 512 * 2**20
PADDING = 0.03
"""The largest share of padding in a batch; more padding costs more than another batch."""
TRUNK_STATE_BYTES = 256 * 2**20
"""The limit for the states of all trunks whose branches have not run yet."""
WORTH_SHARING = 16
"""The least number of saved tokens that is worth a copy of the states."""
UNEVEN_TRUNKS = 0.005
"""The largest share of a batch's common tokens that may run in branches.

A common token that is not in the trunk is run once for every branch.
"""


class LoopedScorer:
    """Scores with a `LoopedLM`: sequences run whole, or as a trunk with branches."""

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
        self._states_grow = False

    def score(self, questions: Sequence[Sequence[Candidate]]) -> list[list[TokenScores]]:
        """Score every candidate; candidates of a question share their common prefix."""
        self._limit_states([len(candidate.tokens) for group in questions for candidate in group])
        sequences = [_sequences(candidates) for candidates in questions]
        alone: list[_Sequence] = []
        sharing: list[_Family] = []
        for of_question in sequences:
            scored = [sequence for sequence in of_question.values() if sequence.labels]
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
            [of_question[_key(candidate)].scores(candidate) for candidate in candidates]
            for of_question, candidates in zip(sequences, questions, strict=True)
        ]

    def _limit_states(self, lengths: list[int]) -> None:
        """Limit the rows of a batch so that its states after the longest sequence fit in memory."""
        longest = max(lengths, default=1)
        state_bytes = max(1, self._state_bytes_after(longest))
        self._states_grow = state_bytes != max(1, self._state_bytes_after(0))
        self._most_states = max(1, self._state_bytes // state_bytes)
        self._most_trunks = max(1, TRUNK_STATE_BYTES // state_bytes)

    def _state_bytes_after(self, num_tokens: int) -> int:
        """Memory of the states of one sequence."""
        return sum(
            self._model.sublayer(occurrence).cost(num_tokens).state_bytes
            for occurrence in self._schedule
        )

    def _score_alone(self, sequences: "list[_Sequence]") -> None:
        batches = self._batches(sequences, [len(sequence.inputs) for sequence in sequences])
        for tokens in self._on_cores(self._run_whole, batches):
            self.tokens_processed += tokens

    def _score_sharing(self, families: "list[_Family]") -> None:
        batches = self._batches(
            families, [family.shared for family in families], most_padding=UNEVEN_TRUNKS
        )
        trunks = list(self._on_cores(self._run_trunk, batches))
        self.tokens_processed += sum(trunk.batch * trunk.num_tokens for trunk in trunks)
        if not self._states_grow:
            self._score_branches(batches, trunks)
            return
        for batch, trunk in zip(
            batches, trunks, strict=True
        ):  # states of unequal length stay apart
            self._score_branches([batch], [trunk])

    def _score_branches(self, batches: "list[list[_Family]]", trunks: list[DecodeState]) -> None:
        branches: list[_Branch] = []
        row = 0
        for batch, trunk in zip(batches, trunks, strict=True):
            for family in batch:
                branches += [
                    _Branch(row, trunk.num_tokens, sequence) for sequence in family.sequences
                ]
                row += 1
        all_trunks = side_by_side(trunks)
        lengths = [len(branch.sequence.inputs) - branch.skipped for branch in branches]
        parts = self._batches(branches, lengths)
        for tokens in self._on_cores(partial(self._run_branches, all_trunks), parts):
            self.tokens_processed += tokens

    def _batches(
        self, items: Sequence[T], lengths: Sequence[int], *, most_padding: float = PADDING
    ) -> list[list[T]]:
        batches = batches_by_length(
            lengths,
            most_tokens=self._most_tokens,
            most_rows=self._most_states,
            most_padding=most_padding,
        )
        return [[items[index] for index in batch] for batch in batches]

    def _on_cores(self, function: Callable[[T], Result], batches: list[T]) -> Iterator[Result]:
        def run(batch: T) -> Result:
            with torch.inference_mode(), compute_in(self._compute_dtype, self._device.type):
                return function(batch)

        return map_on_cores(run, batches, device=self._device)

    def _run_whole(self, sequences: "list[_Sequence]") -> int:
        tokens = self._tokens([sequence.inputs for sequence in sequences])
        walked = self._model.walk(self._model.embed(tokens), self._mixing)
        self._read_out(walked.residual, sequences, skipped=[0] * len(sequences))
        return tokens.numel()

    def _run_trunk(self, families: "list[_Family]") -> DecodeState:
        num_tokens = min(family.shared for family in families)
        tokens = self._tokens([family.sequences[0].inputs[:num_tokens] for family in families])
        state = start(self._model, batch=len(families), schedule=self._mixing)
        _, state = feed(self._model, tokens, state)
        return state

    def _run_branches(self, trunks: DecodeState, branches: "list[_Branch]") -> int:
        state = trunks.select(torch.tensor([branch.row for branch in branches]))
        tokens = self._tokens([branch.sequence.inputs[branch.skipped :] for branch in branches])
        residual, _ = feed(self._model, tokens, state)
        self._read_out(
            residual,
            [branch.sequence for branch in branches],
            skipped=[branch.skipped for branch in branches],
        )
        return tokens.numel()

    def _tokens(self, rows: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(padded(rows)).to(self._device)

    def _read_out(
        self, residual: Tensor, sequences: "list[_Sequence]", *, skipped: list[int]
    ) -> None:
        """Finish the schedule and run the head, only where a scored token is predicted."""
        spans = [
            (row, first - 1 - before, labels)
            for row, (sequence, before) in enumerate(zip(sequences, skipped, strict=True))
            for first, labels in sequence.labels.values()
        ]
        sizes = [len(labels) for _, _, labels in spans]
        rows = np.repeat([row for row, _, _ in spans], sizes)
        firsts = np.repeat([first for _, first, _ in spans], sizes)
        places = firsts + np.concatenate([np.arange(size) for size in sizes])
        labels = np.concatenate([labels for _, _, labels in spans])
        at_row, at_place, targets = (
            torch.from_numpy(x).to(self._device) for x in (rows, places, labels)
        )
        chosen = residual[at_row, at_place]
        if self._afterwards:
            (chosen,) = self._model.walk(chosen[None], self._afterwards).residual
        losses, most_likely = self._model.token_nll(chosen, targets)
        check_finite(losses, what="losses")
        parts = (
            np.split(x.cpu().numpy(), np.cumsum(sizes)[:-1]) for x in (losses.double(), most_likely)
        )
        scores = (TokenScores(*of_span) for of_span in zip(*parts, strict=True))
        for sequence in sequences:
            sequence.scores_by_key = {key: next(scores) for key in sequence.labels}


def scorer_of(
    subject: Subject, *, schedule: Schedule | None = None, share_prefixes: bool = True
) -> LoopedScorer:
    """A scorer with the precision of a subject, and its schedule unless another is given."""
    return LoopedScorer(
        subject.model,
        schedule=subject.schedule if schedule is None else schedule,
        compute_dtype=subject.compute_dtype,
        share_prefixes=share_prefixes,
    )


def mixing_and_afterwards(model: LoopedLM, schedule: Schedule) -> tuple[Schedule, Schedule]:
    """Cut a schedule after its last stateful occurrence; later occurrences see each token alone.

    The schedule of a model with pass rules is not cut, because a rule may span the cut.
    """
    if model.pass_rules:
        return schedule, ()
    mixing = [at for at, occurrence in enumerate(schedule) if model.mixes_tokens(occurrence)]
    last = max(mixing, default=-1)
    return schedule[: last + 1], schedule[last + 1 :]


_Key = tuple[int, bytes]
"""The position of a candidate's first scored token, and the bytes of its scored tokens."""
NOTHING = TokenScores(np.empty(0), np.empty(0, dtype=np.int64))


class _Sequence:
    """The model input of one or more candidates, which may differ in their last token only.

    Equal candidates are scored once, so that their scores are equal.
    """

    def __init__(self, inputs: np.ndarray) -> None:
        self.inputs = inputs
        self.labels: dict[_Key, tuple[int, np.ndarray]] = {}
        self.scores_by_key: dict[_Key, TokenScores] = {}

    def add(self, candidate: Candidate) -> None:
        """Add the scored tokens of a candidate, if it has any."""
        labels = candidate.tokens[candidate.start :]
        if len(labels):
            self.labels[candidate.start, labels.tobytes()] = candidate.start, labels

    def scores(self, candidate: Candidate) -> TokenScores:
        """The scores of a candidate, once the sequence has been read out."""
        labels = candidate.tokens[candidate.start :]
        return self.scores_by_key[candidate.start, labels.tobytes()] if len(labels) else NOTHING


def _sequences(candidates: Sequence[Candidate]) -> dict[bytes, _Sequence]:
    """The distinct inputs of the candidates of a question."""
    sequences: dict[bytes, _Sequence] = {}
    for candidate in candidates:
        sequences.setdefault(_key(candidate), _Sequence(candidate.tokens[:-1])).add(candidate)
    return sequences


def _key(candidate: Candidate) -> bytes:
    return candidate.tokens[:-1].tobytes()


class _Family(NamedTuple):
    """Sequences of a question with a common prefix."""

    sequences: list[_Sequence]
    shared: int
    """Tokens of the common prefix, which are run once."""

    @property
    def is_worth_sharing(self) -> bool:
        return self.shared * (len(self.sequences) - 1) >= WORTH_SHARING


class _Branch(NamedTuple):
    """The part of a sequence after its trunk."""

    row: int
    """The row of its trunk among all trunks."""
    skipped: int
    """The number of tokens of its trunk."""
    sequence: _Sequence


def _families(sequences: list[_Sequence]) -> list[_Family]:
    """Divide the sequences of a question into families with a common prefix.

    Cropping gives candidates of different lengths different beginnings, so the candidates of a
    question may make several families. Candidates of equal length keep the same beginning.
    """
    whole = _Family(sequences, _shared_tokens(sequences))
    if whole.is_worth_sharing:
        return [whole]
    by_prefix: dict[bytes, list[_Sequence]] = {}
    for sequence in sequences:
        by_prefix.setdefault(sequence.inputs[:WORTH_SHARING].tobytes(), []).append(sequence)
    return [_Family(family, _shared_tokens(family)) for family in by_prefix.values()]


def _shared_tokens(sequences: list[_Sequence]) -> int:
    """The number of common tokens that come before the first token that predicts a scored token."""
    if len(sequences) < 2:
        return 0
    starts = [start for sequence in sequences for start, _ in sequence.labels.values()]
    common = common_prefix([sequence.inputs for sequence in sequences])
    return min(common, *(start - 1 for start in starts))
