"""The held-out NLL as a result, and its documents as units of a comparison."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from mixerloop.config import Documents
from mixerloop.evaluation.units import RatioUnits, detail_lines, finite
from mixerloop.measures import MEASURES
from mixerloop.parsing import one_line
from mixerloop.results import Estimate, PointEstimate, Result

FEW_DOCUMENTS = 20
"""An interval over fewer documents than this is not reliable."""


@dataclass(frozen=True, kw_only=True)
class NllAtPositions:
    """The NLL of the tokens that are predicted at a range of positions.

    A position is the index, from 0, of the predicting token in its window.
    """

    first: int
    """The first position of the range."""
    last: int
    """The last position of the range."""
    nll: Estimate | PointEstimate


@dataclass(frozen=True, kw_only=True)
class NllFigures:
    """Losses and accuracy of a model on held-out tokens; a single document gives no intervals."""

    nll: Estimate | PointEstimate
    """Nats per token."""
    bits_per_byte: Estimate | PointEstimate | None
    """None for a synthetic task, which is not text."""
    accuracy: Estimate | PointEstimate
    """The share of tokens that the model found most likely."""
    by_position: tuple[NllAtPositions, ...]
    documents: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class NllResult(NllFigures, Result):
    """The held-out NLL of one subject."""

    context: int
    """Tokens of a window."""
    scored: Documents = "all"
    """The held-out documents that were scored; older results scored all."""
    warnings: tuple[str, ...]
    by_passes: dict[int, NllFigures]
    """Figures with every loop stopped after a number of passes, by that number."""


@dataclass(frozen=True)
class DocumentUnits(RatioUnits):
    """Nats and tokens of each document."""

    def warnings(self) -> Iterator[str]:
        """Warn of unreliable intervals: documents are few, or few documents hold most tokens."""
        size = len(self.denominators)
        if (num_equal := equal_documents(self.denominators)) < FEW_DOCUMENTS:
            as_good = "" if num_equal > size - 1 else f", unequal ones: as good as {num_equal:.0f}"
            yield f"the intervals of the NLL come from {size} documents{as_good}"

    def not_compared_because(self) -> str | None:
        """A single document has no interval."""
        if len(self.denominators) > 1:
            return None
        return (
            "its NLL is of a single held-out document, which gives no interval; prepare two such "
            "documents or more with the run's tokenizer (mixerloop data prepare text FILES "
            "--held-out FILE FILE --tokenizer RUN --out DIR), and measure each run on them: "
            "mixerloop evaluate nll RUN --data DIR"
        )


def equal_documents(tokens: Int[np.ndarray, " documents"]) -> float:
    """The number of documents of equal length whose mean would vary as much as that of these."""
    return float(tokens.sum()) ** 2 / float((tokens.astype(float) ** 2).sum())


def document_units(
    nats: Float[np.ndarray, " documents"],
    tokens: Int[np.ndarray, " documents"],
    *,
    data: str | None,
    context: int,
    compute_dtype: str | None,
    scored: Documents = "all",
) -> DocumentUnits:
    """The units of an NLL, with the settings that a comparison checks."""
    return DocumentUnits(
        {"data": data, "context": context, "compute_dtype": compute_dtype, "documents": scored},
        "nll",
        "documents",
        nats,
        tokens,
    )


def nll_details(
    numbers: Int[np.ndarray, " documents"],
    nats: Float[np.ndarray, " documents"],
    tokens: Int[np.ndarray, " documents"],
    sizes: Float[np.ndarray, " documents"] | None,
) -> str:
    """The content of nll.jsonl: a line for each document; `sizes` are bytes, None if not text."""
    lines = [
        json.dumps(
            {
                "document": int(numbers[index]),
                "nats": float(nats[index]),
                "tokens": int(tokens[index]),
                "bytes": None if sizes is None else float(sizes[index]),
            }
        )
        for index in range(len(nats))
    ]
    return "\n".join(lines) + "\n"


def read_nll_units(folder: Path, result: NllResult) -> DocumentUnits:
    """Read the documents of a result; they must add up to the counts of the result."""
    nats, tokens = [], []
    for number, line in detail_lines(MEASURES["nll"].details_in(folder)):
        try:
            nats.append(finite(line["nats"]))
            tokens.append(int(finite(line["tokens"])))
        except (KeyError, TypeError) as error:
            raise ValueError(f"line {number}: {one_line(error)}") from None
    agrees = (len(nats), sum(tokens)) == (result.documents, result.tokens)
    if not agrees or sum(tokens) <= 0:
        raise ValueError("its documents are not those of the result")
    return document_units(
        np.array(nats),
        np.array(tokens),
        data=result.provenance.data,
        context=result.context,
        compute_dtype=result.provenance.compute_dtype,
        scored=result.scored,
    )
