"""The NLL of all held-out tokens, with intervals over documents.

The split is cut into windows of the context, the last one shorter, and every token but the very
first is scored once, given those before it in its window. A token belongs to the document it is in;
the sequences of a made task are documents of their own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from mixerloop.data.hops import NOT_SCORED, Hops
from mixerloop.data.shards import TokenSplit, verify_split
from mixerloop.data.tokenizer import Tokenizer
from mixerloop.evaluation.nll_result import NllAtPositions, NllFigures
from mixerloop.evaluation.scorer import Candidate, Scorer
from mixerloop.intervals import bootstrap_ratio, estimate, resampled_ratios

BATCH_TOKENS = 65536
"""Handed to the scorer at a time, which makes its own batches of them."""
Progress = Callable[[int, int], None]
"""Told how many tokens are scored, of how many."""


class Windows(NamedTuple):
    """Some windows, and for each token but a window's first the document it counts for."""

    tokens: list[np.ndarray]
    documents: list[np.ndarray]
    """-1 where a token is not scored."""


@dataclass(frozen=True)
class HeldOut:
    """What is scored."""

    num_documents: int
    text_bytes: np.ndarray | None
    """UTF-8 bytes of each document, in proportion; none for a task that is not text."""
    context: int
    num_tokens: int
    source: TokenSplit | Hops

    def windows(self) -> Iterator[Windows]:
        """All windows, some at a time."""
        if isinstance(self.source, Hops):
            return _hops_windows(self.source)
        return _text_windows(self.source, self.context)


def held_out_text(split: TokenSplit, tokenizer: Tokenizer, *, context: int) -> HeldOut:
    """The held-out documents of a prepared folder."""
    if context < 1:
        raise ValueError(f"context must be at least 1, got {context}")
    verify_split(split.folder, split.manifest, "held_out", bos_id=tokenizer.bos_id)
    starts = split.document_starts()
    if len(starts) < 2:
        raise ValueError(
            f"{split.folder}: {len(starts)} held-out documents give no interval; hold out more"
        )
    ends = np.append(starts[1:], len(split))
    decoded = np.array(
        [
            len(tokenizer.decode(split.read(int(start), int(end)).tolist()).encode())
            for start, end in zip(starts, ends, strict=True)
        ]
    )
    if not decoded.any():
        raise ValueError(f"{split.folder}: its held-out documents hold no text")
    # A tokenizer may write other characters than it read, so the sum is that of the text itself.
    sizes = decoded * (sum(shard.text_bytes for shard in split.shards) / decoded.sum())
    return HeldOut(len(starts), sizes, min(context, len(split) - 1), len(split) - 1, split)


def held_out_hops(hops: Hops) -> HeldOut:
    """The held-out sequences of a made task, of which the answers are scored."""
    _, labels = hops.read(np.arange(1))
    scored = int((labels != NOT_SCORED).sum())
    return HeldOut(hops.num_windows, None, hops.context, hops.num_windows * scored, hops)


def _text_windows(split: TokenSplit, context: int) -> Iterator[Windows]:
    starts = split.document_starts()
    many = max(1, BATCH_TOKENS // context) * context
    for at in range(0, len(split) - 1, many):
        stop = min(at + many, len(split) - 1)
        tokens = split.read(at, stop + 1).astype(np.int64)
        documents = np.searchsorted(starts, np.arange(at + 1, stop + 1), side="right") - 1
        cuts = range(0, stop - at, context)
        yield Windows(
            [tokens[cut : cut + context + 1] for cut in cuts],
            [documents[cut : cut + context] for cut in cuts],
        )


def _hops_windows(hops: Hops) -> Iterator[Windows]:
    many = max(1, BATCH_TOKENS // hops.context)
    for at in range(0, hops.num_windows, many):
        numbers = np.arange(at, min(at + many, hops.num_windows))
        inputs, labels = hops.read(numbers)
        scored = labels != NOT_SCORED
        last = np.where(scored[:, -1:], labels[:, -1:], 0)
        yield Windows(
            list(np.concatenate([inputs, last], axis=1)),
            list(np.where(scored, numbers[:, None], -1)),
        )


@dataclass(frozen=True)
class DocumentSums:
    """Nats and tokens of each document, in bins of the place within the window."""

    nats: Float[np.ndarray, "documents bins"]
    tokens: Int[np.ndarray, "documents bins"]
    right: Int[np.ndarray, " documents"]
    """Tokens that were the most likely one."""


def measure(scorer: Scorer, held_out: HeldOut, *, progress: Progress | None = None) -> DocumentSums:
    """Score every window."""
    bins = len(edges(held_out.context)) - 1
    nats = np.zeros((held_out.num_documents, bins))
    tokens = np.zeros((held_out.num_documents, bins), dtype=np.int64)
    right = np.zeros(held_out.num_documents, dtype=np.int64)
    bin_of = np.searchsorted(edges(held_out.context), np.arange(held_out.context), side="right") - 1
    done = 0
    for windows in held_out.windows():
        scores = scorer.score([[Candidate(row, start=1)] for row in windows.tokens])
        for row, documents, (found,) in zip(*windows, scores, strict=True):
            scored = documents >= 0
            place = documents[scored], bin_of[: len(documents)][scored]
            np.add.at(nats, place, found.losses[scored])
            np.add.at(tokens, place, 1)
            np.add.at(right, documents[scored], (found.most_likely == row[1:])[scored])
            done += int(scored.sum())
        if progress is not None:
            progress(done, held_out.num_tokens)
    return DocumentSums(nats, tokens, right)


def edges(context: int) -> np.ndarray:
    """Places 0, 1, 2-3, 4-7 and so on: the number of tokens seen before, within its octave."""
    doubling = [0, *(2**power for power in range(context.bit_length()) if 2**power < context)]
    return np.array([*doubling, context])


def summarise(sums: DocumentSums, held_out: HeldOut) -> NllFigures:
    """Sums over documents to figures with intervals."""
    nats, tokens = sums.nats.sum(axis=1), sums.tokens.sum(axis=1)
    replicates = resampled_ratios(sums.nats, sums.tokens)
    at = edges(held_out.context)
    places = [
        NllAtPositions(
            first=int(first),
            last=int(last) - 1,
            nll=estimate(float(value), drawn, over="documents"),
        )
        for first, last, value, drawn in zip(
            at[:-1],
            at[1:],
            sums.nats.sum(axis=0) / np.maximum(sums.tokens.sum(axis=0), 1),
            replicates.T,
            strict=True,
        )
        if not np.isnan(drawn).all()
    ]
    sizes = held_out.text_bytes
    bits = None
    if sizes is not None:
        bits = bootstrap_ratio(nats / np.log(2), sizes, over="documents")
    return NllFigures(
        nll=bootstrap_ratio(nats, tokens, over="documents"),
        bits_per_byte=bits,
        accuracy=bootstrap_ratio(sums.right, tokens, over="documents"),
        by_position=tuple(places),
        documents=held_out.num_documents,
        tokens=int(tokens.sum()),
    )
