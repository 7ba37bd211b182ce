"""A measure in one file, with a verdict: the share of a model's embedding that is positive.

Rows of the embedding are its units. The test registers `TOY`; nothing else knows this file.
"""

import json
from dataclasses import dataclass

import numpy as np

from mixerloop.evaluation.units import RatioUnits, detail_lines
from mixerloop.intervals import bootstrap_ratio
from mixerloop.measures import Measure, Score
from mixerloop.results import Estimate, Result

TOY = Measure(
    name="positive",
    label="the positive share",
    result="toy_measure:PositiveResult",
    take="toy_measure:measure_positive",
    command="toy positive",
    details="positive.jsonl",
    units="toy_measure:read_units",
    scores=(
        Score(
            name="positive",
            title="positive weights",
            scale=100,
            digits=1,
            higher_is_better=True,
            resampled="examples",
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class PositiveResult(Result):
    positive: Estimate
    rows: int


def measure_positive(subject, part, line) -> PositiveResult:
    weights = subject.model.embedding.weight.detach().cpu().numpy()
    positive, size = (weights > 0).sum(axis=1), np.full(len(weights), weights.shape[1])
    result = PositiveResult(
        **subject.heading(),
        positive=bootstrap_ratio(positive, size, over="examples"),
        rows=len(weights),
        provenance=subject.provenance(),
    )
    lines = (
        json.dumps({"positive": int(p), "size": int(n)})
        for p, n in zip(positive, size, strict=True)
    )
    subject.save(result, details="\n".join(lines) + "\n")
    return result


def read_units(folder, result) -> RatioUnits:
    rows = [row for _, row in detail_lines(TOY.details_in(folder))]
    if len(rows) != result.rows:
        raise ValueError("its rows are others")
    positive, size = (np.array([row[key] for row in rows]) for key in ("positive", "size"))
    return RatioUnits({}, "positive", "rows", positive, size)
