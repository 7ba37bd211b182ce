"""Results as typed values: estimates with intervals, provenance, and their one JSON encoding.

A result is a frozen dataclass derived from `Result`. `encode` writes it as JSON and `decode` reads
it back strictly: unknown keys, missing keys and wrong types are errors. `mixerloop.measures` lists
the kinds of results, and `mixerloop.result_files` puts them into files.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypedDict, TypeVar

from mixerloop.parsing import from_dict
from mixerloop.provenance import collect_provenance

Over = Literal[
    "documents",
    "sequences",
    "examples",
    "windows",
    "cells",
    "seeds",
    "seeds and examples",
    "seeds and cells",
]
"""The units that an interval was resampled over."""
Scalar = str | int | float | bool | None

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure and the interval that holds the true figure in 95 % of repetitions."""

    value: float
    lower: float
    upper: float
    over: Over
    """The units whose variation the interval describes."""

    def scaled(self, factor: float) -> "Estimate":
        """The estimate in another unit, such as percent."""
        return Estimate(
            value=factor * self.value,
            lower=factor * self.lower,
            upper=factor * self.upper,
            over=self.over,
        )


@dataclass(frozen=True, kw_only=True)
class PointEstimate:
    """A figure whose units are too few for an interval, in the encoding of `Estimate`."""

    value: float
    over: Over
    """The units that were too few to resample."""
    lower: None = None
    upper: None = None


@dataclass(frozen=True, kw_only=True)
class PartialEstimate:
    """An estimate that may be undefined, in the encoding of `Estimate`."""

    value: float | None
    """None if the denominator was 0."""
    lower: float | None
    """None if the value of a resample is undefined; `upper` is None then, too."""
    upper: float | None
    over: Over

    @property
    def estimate(self) -> Estimate | None:
        """The estimate, if the value and both ends are defined."""
        if self.value is None or self.lower is None or self.upper is None:
            return None
        return Estimate(value=self.value, lower=self.lower, upper=self.upper, over=self.over)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Code, versions, machine, weights and data behind a result."""

    created: str
    """The time, to the second, with its zone."""
    command: tuple[str, ...]
    """The program and its arguments."""
    commit: str | None
    """The commit of the source tree; None for an installed package."""
    dirty: bool | None
    """Whether tracked files had changed since the commit."""
    versions: dict[str, str | None]
    """Versions of Python and of each package; None for a package that is not installed."""
    machine: dict[str, Scalar | dict[str, str]]
    threads: int | None
    """Threads of torch; None if torch was not loaded."""
    seed: int | None = None
    """Seed of the training run, of fresh weights, or of the resampling of a comparison."""
    checkpoint_sha256: str | None = None
    """Fingerprint of the weights."""
    forms: dict[str, str] = field(default_factory=dict)
    """The form of each operator that ran."""
    compute_dtype: str | None = None
    device: str | None = None
    data: str | None = None
    """Fingerprint of the prepared data, or a description of drawn data."""
    bundle: str | None = None
    """Fingerprint of CORE's tasks."""
    corrections: str | None = None
    """Fingerprint of the corrected answers of CORE; None for the answers of the bundle."""
    tokenizer: str | None = None
    """Fingerprint of the tokenizer."""
    draw_seed: int | None = None
    """Seed of the windows that were drawn."""
    draw: int | None = None
    """Which draw under that seed; different draws share no window."""
    preset: str | None = None
    """Size of fresh weights."""
    init: str | None = None
    """Rule of fresh weights."""
    damping: float | None = None
    """Share of its change that each pass but the first kept; None if passes kept all of it."""


def result_provenance(**facts: Any) -> Provenance:
    """The provenance of a result that is made now; raises for a fact without a field."""
    return from_dict(Provenance, collect_provenance(**facts), "provenance.")


class Heading(TypedDict):
    """The model that a result describes: the first fields of `Result`."""

    checkpoint: str | None
    schedule: str
    trained_schedule: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """The fields that every result has beside its figures: the model and the provenance."""

    checkpoint: str | None
    """The folder of the weights; None for fresh weights."""
    schedule: str
    """The schedule that was measured, in notation."""
    trained_schedule: str
    """The schedule that the weights were trained with, or drawn for."""
    provenance: Provenance


def estimate_text(estimate: Estimate | PointEstimate, how: str) -> str:
    """A figure with its interval for a table, in the format `how`."""
    if isinstance(estimate, PointEstimate):
        return f"{estimate.value:{how}} (no interval)"
    return f"{estimate.value:{how}} [{estimate.lower:{how}}, {estimate.upper:{how}}]"


def p_value_text(p_value: float | None) -> str:
    """A p-value for a table; empty if there is none."""
    if p_value is None:
        return ""
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"


def encode(value: Any) -> Any:
    """JSON of a result, or of a part of a result; numbers that are not finite become null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {member.name: encode(getattr(value, member.name)) for member in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    assert value is None or isinstance(value, str | int), f"{value!r} has no encoding"
    return value


def reject_non_finite(value: Any, where: str = "result") -> None:
    """Raise for a number that is not finite in a field that has no null."""
    if is_dataclass(value):
        for member in fields(value):
            if "None" not in str(member.type):
                reject_non_finite(getattr(value, member.name), f"{where}.{member.name}")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            reject_non_finite(item, f"{where}.{key}")
    elif isinstance(value, tuple | list):
        for number, item in enumerate(value):
            reject_non_finite(item, f"{where}[{number}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}")


def decode(cls: type[T], data: Any) -> T:
    """A result from its JSON; raises ValueError for anything that `encode` does not write."""
    if not isinstance(data, dict):
        raise ValueError("result must be a table")
    return from_dict(cls, data, "result.")
