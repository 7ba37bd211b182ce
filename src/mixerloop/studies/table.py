"""A study is a table: a row is one model with one random seed, in one size and with one budget.

The plan writes rows, cells fill them, and comparisons, laws and reports read them. A row begins
with what the plan says of it; its last columns are what its files hold.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, TypeVar

from mixerloop.config import ComputeDtype, ComputeDtypeChoice, Documents, RunConfig
from mixerloop.evaluation.comparison_result import (
    Arm,
    Comparison,
    Pair,
    TaskPart,
    judged_together,
    task_warnings,
)
from mixerloop.evaluation.difference import PAIRS_FROM, Scores, difference
from mixerloop.evaluation.units import Units
from mixerloop.intervals import over_runs
from mixerloop.measures import MEASURES, Measure, score_named
from mixerloop.parent_record import ParentRecord
from mixerloop.parsing import from_dict
from mixerloop.results import Estimate, PointEstimate, Result, encode, result_provenance
from mixerloop.study_folder import MEASURED_IN, Match, TransportSettings

R = TypeVar("R", bound=Result)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What the checkpoint of a row says of its training."""

    config: RunConfig
    trained_on: str | None = None
    """Fingerprint of the training data."""
    step: str
    """The checkpoint's name."""
    parent: str | None = None
    """Fingerprint of the weights that the run began with; None for fresh weights."""


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """The held-out NLL at a step of training."""

    tokens: int
    """Tokens trained on up to this step."""
    held_out_nll: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One model with one random seed."""

    number: int = 0
    """Counted from 1 over the study; 0 for a run outside one."""
    run: str = ""
    """The run's folder inside the study's."""
    part: str = ""
    """The part of the plan: models that are compared with each other."""
    family: str = ""
    """The part of the study file; its sizes and budgets are several parts of the plan."""
    size: str | None = None
    """The name of the size; None if the study file names no sizes."""
    tokens: int | None = None
    """The budget; None if the study file has it in the config alone."""
    is_tuning: bool = False
    """Whether the run chooses a value for the other rows of its family."""
    arm: str = ""
    """The name of the model; in a run that tunes, with the value of the tuned key."""
    seed: int | None = None
    """None for a run without a seed, which no study has."""

    schedule: str = ""
    """The schedule in notation."""
    deepened: str | None = None
    """The model whose compute per token sets the number of layers; None for the config's own."""
    num_layers: int = 0
    d_model: int = 0
    vocab_size: int = 0
    parameters: int = 0
    flops_per_token: float = 0.0
    """Operations of a forward and a backward pass."""
    macs: dict[str, int] = field(default_factory=dict)
    """Multiply-adds of one occurrence, by sublayer."""
    layer_parameters: tuple[dict[str, int], ...] = ()
    """For each layer the parameters of its sublayers, norms included; older plans name none."""
    parent: ParentRecord | None = None
    """The model whose weights this one starts from; None for fresh weights."""

    match: Match | Literal["as they are"] = "as they are"
    """"as they are" for runs that no study matched."""
    data: str = ""
    """The arguments of `mixerloop data prepare`."""
    compute_dtype: ComputeDtypeChoice = "auto"
    """The compute type of models that name none of their own; a cell on a GPU resolves `auto`."""
    tuned: dict[str, float] = field(default_factory=dict)
    """The value of the tuned key; empty if the part does not tune, or has not yet."""
    tunes: str | None = None
    """The model whose key this run tunes."""
    amounts: dict[str, float] = field(default_factory=dict)
    """`tokens` and `flops` of the training in whole steps, or `seconds`; none in older plans."""
    differs: dict[str, str] = field(default_factory=dict)
    """The keys of data and training in which the models of a part differ, with own values."""

    measure: tuple[str, ...] = ()
    measure_in: dict[str, ComputeDtype] = field(default_factory=dict)
    """The compute type of each measurement; older plans name none and used float32."""
    transport: TransportSettings = field(default_factory=TransportSettings)
    documents: Documents | None = None
    """The held-out documents that an NLL is of; None for any, as in older plans."""

    path: Path | None = field(default=None, metadata={"filled": True})
    """The folder of the run, or of its results; None until the row is filled."""
    results: Mapping[str, Result] = field(default_factory=dict, metadata={"filled": True})
    """By the name of the measure; empty until all that the plan asks for are there."""
    units: Mapping[str, Units[Any]] = field(default_factory=dict, metadata={"filled": True})
    """The scores of single units, by the name of the measure; read for a comparison only."""
    origin: Origin | None = field(default=None, metadata={"filled": True})
    """None for results in a folder outside a run; read for a comparison only."""
    curve: tuple[CurvePoint, ...] = field(default=(), metadata={"filled": True})
    seconds: float | None = field(default=None, metadata={"filled": True})
    """Seconds of training."""
    trained_tokens: int | None = field(default=None, metadata={"filled": True})
    """Tokens trained on."""
    provenance: Mapping[str, Any] = field(default_factory=dict, metadata={"filled": True})
    """The provenance of training, as JSON in the format of the run directory."""

    @classmethod
    def from_table(cls, data: dict[str, Any]) -> "Row":
        """A row from the JSON of its planned columns."""
        if unknown := [name for name in data if name not in PLANNED]:
            raise ValueError(f"rows have no column {unknown[0]}")
        if missing := [name for name in PLANNED if name not in data]:
            raise ValueError(f"a row has no {missing[0]}")
        return from_dict(cls, data)

    def planned(self) -> dict[str, Any]:
        """The JSON of the columns that the plan writes."""
        return {name: encode(getattr(self, name)) for name in PLANNED}

    def measured_in(self, measure: str) -> ComputeDtype:
        """The compute type of a measurement."""
        return self.measure_in.get(measure, MEASURED_IN)

    def result(self, kind: type[R]) -> R | None:
        """The result of a type; None if the row has none."""
        return next((one for one in self.results.values() if type(one) is kind), None)

    @property
    def place(self) -> Path:
        """The folder of a filled row."""
        assert self.path is not None
        return self.path


PLANNED = tuple(one.name for one in fields(Row) if "filled" not in one.metadata)
"""The columns that the plan writes."""


@dataclass(frozen=True)
class Table:
    """Rows of one study, or of some of its parts, models or seeds."""

    rows: tuple[Row, ...]
    comparisons: Mapping[str, Comparison] = field(default_factory=dict)
    """By the name of the part."""

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def first(self) -> Row:
        """The first row: for columns that all rows share."""
        return self.rows[0]

    def only(self, keep: Callable[[Row], Any]) -> "Table":
        """The rows for which a function is true."""
        return Table(tuple(filter(keep, self.rows)), self.comparisons)

    def where(self, **values: Hashable) -> "Table":
        """The rows with these values in their columns."""
        return self.only(lambda row: all(getattr(row, key) == values[key] for key in values))

    def by(self, column: str) -> "dict[Any, Table]":
        """The rows of each value of a column, in the order in which values come first."""
        rows: dict[Any, list[Row]] = {}
        for row in self.rows:
            rows.setdefault(getattr(row, column), []).append(row)
        return {value: Table(tuple(of), self.comparisons) for value, of in rows.items()}

    @property
    def filled(self) -> "Table":
        """The rows that are trained, and measured as planned."""
        return self.only(lambda row: row.results)

    @property
    def missing(self) -> list[str]:
        """The runs that are not."""
        return [row.run for row in self.rows if not row.results]

    @property
    def arms(self) -> "dict[str, Table]":
        """The filled rows of each model."""
        return {name: arm.filled for name, arm in self.by("arm").items() if len(arm.filled)}

    @property
    def comparison(self) -> Comparison | None:
        """The comparison of the models of one part, if there is one."""
        return self.comparisons.get(self.first.part)

    def results(self, kind: type[R]) -> list[R]:
        """The result of a type from each row that has one."""
        return [result for row in self.rows if (result := row.result(kind)) is not None]

    def estimate(self, kind: type[Result], figure: str) -> Estimate | PointEstimate | None:
        """The mean of a figure of results over the rows, with its interval over seeds.

        For a single row it is the figure's own estimate. None if no result has the figure.
        """
        found = [getattr(result, figure) for result in self.results(kind)]
        return over_runs([one for one in found if one is not None])

    def trained_in(self) -> str:
        """The compute types of training, each with its models if there are several."""
        return by_value(
            {row.arm: row.differs.get("train.compute_dtype", row.compute_dtype) for row in self}
        )

    def compare(self, *, seed: int = 0) -> Comparison:
        """Compare the arms by the units of each measure that all rows have.

        `seed` is that of the resampling. The rows of an arm differ in their seed.
        """
        if len(self) < 2:
            raise ValueError("a comparison needs two runs or more")
        _check_different(self.rows)
        units, not_compared = _units_of_all(self.rows)
        if not units:
            compared = [measure.name for measure in MEASURES.values() if measure.units is not None]
            raise ValueError(
                "; ".join(not_compared)
                or "no measure was taken of all these runs; measure each of them by one of "
                f"{', '.join(compared)}"
            )
        scores: dict[str, Scores] = {}
        for name, of_rows in units.items():
            _check_agree(self.rows, of_rows, MEASURES[name])
            scores |= type(of_rows[0]).scores(of_rows, seed=seed)
        places = {
            name: sorted(
                (n for n, row in enumerate(self.rows) if row.arm == name),
                key=lambda n: (self.rows[n].seed is None, self.rows[n].seed),
            )
            for name in self.by("arm")
        }
        arms = {name: self._arm(name, at, scores) for name, at in places.items()}
        pairs = tuple(
            _pair(arms[first], arms[second], places, scores, units, seed=seed)
            for first, second in combinations(arms, 2)
        )
        comparison = Comparison(
            arms=tuple(arms.values()),
            pairs=pairs,
            warnings=(*not_compared, *_common_warnings(self.rows, units)),
            provenance=result_provenance(seed=seed),
        )
        return judged_together([comparison])[0]

    def _arm(self, name: str, at: Sequence[int], scores: Mapping[str, Scores]) -> Arm:
        return Arm(
            name=name,
            runs=tuple(str(self.rows[n].path) for n in at),
            seeds=tuple(self.rows[n].seed for n in at),
            scores={score: float(of.points[list(at)].mean()) for score, of in scores.items()},
        )


def by_value(values: Mapping[str, str]) -> str:
    """The values of models: `4 (no_loop), 8 (mixer_loop, full_loop)`, or a common value alone."""
    models: dict[str, list[str]] = {}
    for model, value in values.items():
        models.setdefault(value, []).append(model)
    if len(models) == 1:
        return next(iter(models))
    return ", ".join(f"{value} ({', '.join(of)})" for value, of in models.items())


def _model(row: Row) -> tuple[str | None, str]:
    result = next(iter(row.results.values()))
    return result.provenance.checkpoint_sha256, result.schedule


def _check_different(rows: Sequence[Row]) -> None:
    for first, second in combinations(rows, 2):
        if _model(first) == _model(second):
            raise ValueError(f"{first.path} and {second.path} are the same model")


def _units_of_all(rows: Sequence[Row]) -> tuple[dict[str, list[Units[Any]]], list[str]]:
    """The units of each measure that all rows have, and why other such units are not compared."""
    units: dict[str, list[Units[Any]]] = {}
    not_compared = []
    for name in MEASURES:
        if not all(name in row.units for row in rows):
            continue
        reasons = [(row.path, row.units[name].not_compared_because()) for row in rows]
        reason = next((f"{path}: {why}" for path, why in reasons if why), None)
        if reason is None:
            units[name] = [row.units[name] for row in rows]
        else:
            not_compared.append(reason)
    return units, not_compared


def _check_agree(rows: Sequence[Row], units: Sequence[Units[Any]], measure: Measure) -> None:
    """Reject rows whose settings or units differ from those of the first row."""
    first = units[0]
    for row, of_row in zip(rows, units, strict=True):
        for key, value in first.settings.items():
            if of_row.settings[key] != value:
                raise ValueError(
                    f"{row.path}: {measure.label} was measured with {key} {of_row.settings[key]}, "
                    f"and of {rows[0].path} with {value}"
                )
    for row, of_row in zip(rows, units, strict=True):
        if (reason := of_row.mismatch(first)) is not None:
            raise ValueError(f"{row.path}: {reason} {rows[0].path}")


def _common_warnings(
    rows: Sequence[Row], units: Mapping[str, Sequence[Units[Any]]]
) -> Iterator[str]:
    for name, measure in MEASURES.items():
        missing = [row for row in rows if name not in row.units]
        is_expected = measure.warn_if_unmeasured or len(missing) < len(rows)
        if missing and measure.units is not None and is_expected:
            yield f"{measure.label} is left out: it was not measured of {missing[0].path}"
    for of_rows in units.values():
        yield from of_rows[0].warnings()


def _pair(
    first: Arm,
    second: Arm,
    places: Mapping[str, Sequence[int]],
    scores: Mapping[str, Scores],
    units: Mapping[str, Sequence[Units[Any]]],
    *,
    seed: int,
) -> Pair:
    at, other = places[first.name], places[second.name]
    same_seeds = None not in first.seeds and first.seeds == second.seeds
    differences = {
        name: difference(
            of.of(list(at)),
            of.of(list(other)),
            same_seeds=same_seeds,
            over=score_named(name).resampled,
            seed=seed,
        )
        for name, of in scores.items()
    }
    tasks: dict[str, TaskPart] = {}
    for of_rows in units.values():
        tasks |= type(of_rows[0]).task_parts(of_rows, at, other)
    return Pair(
        first=first.name,
        second=second.name,
        seeds=_seeds_in_words(len(at), len(other), same_seeds=same_seeds),
        measures=differences,
        tasks=tasks,
        warnings=tuple(task_warnings(tasks)),
    )


def _seeds_in_words(first: int, second: int, *, same_seeds: bool) -> str:
    if first == second == 1:
        return "one seed each: the interval is over examples, and does not cover other seeds"
    if same_seeds and first >= PAIRS_FROM:
        return f"{first} seeds, in pairs: the interval is over seeds and examples"
    if 1 in (first, second):
        return f"{first} and {second} seeds: the one is taken to vary as the others do"
    return f"{first} and {second} seeds: the interval is over seeds and examples"
