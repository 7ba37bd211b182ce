"""A study is a table: a row is one model with one random seed, in one size and with one budget.

The plan writes rows, cells fill them, and comparisons, laws and reports read them. A row begins
with what the plan says of it; its last columns are what its files hold.
"""

import contextlib
import importlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from mixerloop.config import ComputeDtype, ComputeDtypeChoice, Documents, RunConfig
from mixerloop.evaluation.comparison_result import Comparison
from mixerloop.evaluation.units import Units
from mixerloop.intervals import over_runs
from mixerloop.parent_record import ParentRecord
from mixerloop.parsing import from_dict
from mixerloop.results import Estimate, PartialEstimate, PointEstimate, Result, encode
from mixerloop.study_folder import MEASURED_IN, Match, TransportSettings

R = TypeVar("R", bound=Result)


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
    rate: float | None = None
    """The peak learning rate; older plans have it only if it was tuned."""
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

    context: int | None = None
    """Tokens of a window; None if neither the config nor the data decides."""
    cpus: int = 1
    gpus: int = 0

    config: RunConfig | None = field(default=None, metadata={"filled": True})
    """The config of the run; None for a row that was read from a plan or from results alone."""
    path: Path | None = field(default=None, metadata={"filled": True})
    """The folder of the run, or of its results; None until the row is filled."""
    results: Mapping[str, Result] = field(default_factory=dict, metadata={"filled": True})
    """By the name of the measure; empty until all that the plan asks for are there."""
    units: Mapping[str, Units[Any]] = field(default_factory=dict, metadata={"filled": True})
    """The scores of single units, by the name of the measure; read for a comparison only."""
    trained_on: str | None = field(default=None, metadata={"filled": True})
    """Fingerprint of the training data; read for a comparison only, as is `step`."""
    step: str | None = field(default=None, metadata={"filled": True})
    """The name of the checkpoint."""
    curve: tuple[CurvePoint, ...] = field(default=(), metadata={"filled": True})
    seconds: float | None = field(default=None, metadata={"filled": True})
    """Seconds of training."""
    trained_tokens: int | None = field(default=None, metadata={"filled": True})
    """Tokens trained on."""
    loss_parts: Mapping[str, float] = field(default_factory=dict, metadata={"filled": True})
    """The loss and its parts by name, as means over the last tenth of the steps; empty for a loss
    that is the NLL alone."""
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

    def figures(self) -> dict[str, float | None]:
        """Each figure of each result, such as `nll.nll`, with the ends of its interval."""
        return {
            f"{measure}.{name}{end}": getattr(figure, key)
            for measure, result in self.results.items()
            for name, figure in vars(result).items()
            if isinstance(figure, Estimate | PointEstimate | PartialEstimate)
            for end, key in (("", "value"), ("_lower", "lower"), ("_upper", "upper"))
        }

    @property
    def waits_for_tuning(self) -> bool:
        """Whether the tuned key has no value yet: the runs that tune it come first."""
        return self.documents == "test" and not self.tuned

    def with_config(self) -> RunConfig:
        """The config of a row that is to be trained."""
        assert self.config is not None
        return self.config

    @property
    def place(self) -> Path:
        """The folder of a filled row."""
        assert self.path is not None
        return self.path


PLANNED = tuple(one.name for one in fields(Row) if "filled" not in one.metadata)
"""The columns that the plan writes."""
SCALARS = (
    *("number", "run", "part", "family", "size", "tokens", "is_tuning", "arm", "seed", "schedule"),
    *("num_layers", "d_model", "vocab_size", "parameters", "flops_per_token", "rate"),
    *("context", "trained_tokens", "seconds"),
)
"""The columns of a data frame that are columns of a row."""


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
        from mixerloop.studies.comparing import compare

        return compare(self, seed=seed)

    def records(self) -> list[dict[str, Any]]:
        """The rows as flat records of equal columns: plan, training, and figures by measure."""
        figures = [row.figures() for row in self]
        names = dict.fromkeys(name for of_row in figures for name in of_row)
        return [
            {
                **{name: getattr(row, name) for name in SCALARS},
                **{name: of_row.get(name) for name in names},
            }
            for row, of_row in zip(self, figures, strict=True)
        ]

    def frame(self) -> Any:
        """The records as a data frame of pandas or polars, whichever is installed."""
        for package in ("pandas", "polars"):
            with contextlib.suppress(ImportError):
                return importlib.import_module(package).DataFrame(self.records())
        raise ValueError("a data frame needs pandas or polars: pip install pandas")


def by_value(values: Mapping[str, str]) -> str:
    """The values of models: `4 (no_loop), 8 (mixer_loop, full_loop)`, or a common value alone."""
    models: dict[str, list[str]] = {}
    for model, value in values.items():
        models.setdefault(value, []).append(model)
    if len(models) == 1:
        return next(iter(models))
    return ", ".join(f"{value} ({', '.join(of)})" for value, of in models.items())
