"""The held-out NLL: every scored token of the held-out set, with intervals over documents.

`mixerloop.data.held_out` defines which tokens are scored. The validation NLL that training prints
is a different number: the mean over the first whole windows only (`mixerloop.training.step`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Real

from mixerloop.data.held_out import HeldOut
from mixerloop.evaluation.nll_result import NllAtPositions, NllFigures
from mixerloop.evaluation.scorer import Candidate, Scorer
from mixerloop.intervals import bootstrap_ratio, estimate, resampled_ratios
from mixerloop.results import Estimate, PointEstimate

Progress = Callable[[int, int], None]
"""Called with the number of scored tokens and the total."""


@dataclass(frozen=True)
class DocumentSums:
    """Nats and tokens of each document, in bins of the position within the window."""

    nats: Float[np.ndarray, "documents bins"]
    tokens: Int[np.ndarray, "documents bins"]
    right: Int[np.ndarray, " documents"]
    """Tokens that the model found most likely."""


def measure(scorer: Scorer, held_out: HeldOut, *, progress: Progress | None = None) -> DocumentSums:
    """Score every window, and add up the losses of each document and bin."""
    bins = len(edges(held_out.context)) - 1
    nats = np.zeros((held_out.num_documents, bins))
    tokens = np.zeros((held_out.num_documents, bins), dtype=np.int64)
    right = np.zeros(held_out.num_documents, dtype=np.int64)
    bin_of = np.searchsorted(edges(held_out.context), np.arange(held_out.context), side="right") - 1
    done = 0
    for rows in held_out.batches():
        scores = scorer.score([[Candidate(row, start=1)] for row in rows.tokens])
        for row, documents, (of_row,) in zip(*rows, scores, strict=True):
            scored = documents >= 0
            place = documents[scored], bin_of[: len(documents)][scored]
            np.add.at(nats, place, of_row.losses[scored])
            np.add.at(tokens, place, 1)
            np.add.at(right, documents[scored], (of_row.most_likely == row[1:])[scored])
            done += int(scored.sum())
        if progress is not None:
            progress(done, held_out.num_tokens)
    return DocumentSums(nats, tokens, right)


def edges(context: int) -> np.ndarray:
    """The edges of the position bins 0, 1, 2-3, 4-7 and so on, up to the context."""
    doubling = [0, *(2**power for power in range(context.bit_length()) if 2**power < context)]
    return np.array([*doubling, context])


def summarise(sums: DocumentSums, held_out: HeldOut) -> NllFigures:
    """Turn the sums of documents into figures with intervals."""
    nats, tokens = sums.nats.sum(axis=1), sums.tokens.sum(axis=1)
    at = edges(held_out.context)
    places = [
        NllAtPositions(first=int(first), last=int(last) - 1, nll=nll)
        for first, last, nll in zip(at[:-1], at[1:], _by_bin(sums), strict=True)
        if nll is not None
    ]
    sizes = held_out.text_bytes
    bits = None
    if sizes is not None:
        bits = _over_documents(nats / np.log(2), sizes)
    return NllFigures(
        nll=_over_documents(nats, tokens),
        bits_per_byte=bits,
        accuracy=_over_documents(sums.right, tokens),
        by_position=tuple(places),
        documents=held_out.num_documents,
        tokens=int(tokens.sum()),
    )


def _by_bin(sums: DocumentSums) -> list[Estimate | PointEstimate | None]:
    """The NLL in each bin of positions; None if no token is scored there."""
    nats, tokens = sums.nats.sum(axis=0), sums.tokens.sum(axis=0)
    values = nats / np.maximum(tokens, 1)
    if len(sums.nats) < 2:
        return [
            PointEstimate(value=float(value), over="documents") if scored else None
            for value, scored in zip(values, tokens, strict=True)
        ]
    return [
        None if np.isnan(drawn).all() else estimate(float(value), drawn, over="documents")
        for value, drawn in zip(values, resampled_ratios(sums.nats, sums.tokens).T, strict=True)
    ]


def _over_documents(
    numerators: Real[np.ndarray, " documents"], denominators: Real[np.ndarray, " documents"]
) -> Estimate | PointEstimate:
    """Sum over sum, with an interval if there are two documents or more."""
    if len(numerators) < 2:
        value = float(numerators.sum() / denominators.sum())
        return PointEstimate(value=value, over="documents")
    return bootstrap_ratio(numerators, denominators, over="documents")
