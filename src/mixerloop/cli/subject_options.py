"""Options that all measuring verbs share, and where their results are saved."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from mixerloop.config import ComputeDtype, Device, FormChoice
from mixerloop.measures import measure_of

if TYPE_CHECKING:
    from mixerloop.results import Result
    from mixerloop.subject import Subject


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """The options of every verb that measures a model."""

    schedule: str | None = None
    """Run under another schedule than that of training."""
    damping: float | None = None
    """Keep this share of what each pass but the first changes; for loops without training."""
    compute_dtype: ComputeDtype = "float32"
    """The type of the projections."""
    form: FormChoice = "auto"
    """The form of the operators."""
    device: Device = "auto"
    """The device to run on."""
    out: Path | None = None
    """Save results here; by default in RUN/results, if the run is under its own schedule."""
    json: bool = False
    """Print JSON for programs, and no progress."""

    def open_run(self, run: Path) -> "Subject":
        """Load the model of a run, or of one of its checkpoints."""
        from mixerloop.interop.loading import open_subject

        return open_subject(
            run,
            schedule=self.schedule,
            damping=self.damping,
            compute_dtype=self.compute_dtype,
            form=self.form,
            device=self.device,
            results=self.out,
        )


@dataclass(frozen=True, kw_only=True)
class Opening(Measuring):
    """The options of every verb that measures a run."""

    run_path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="run", metavar="RUN")]
    """A run, or one of its checkpoints."""

    def open(self) -> "Subject":
        """Load the model of `run_path`, ready to be measured."""
        return self.open_run(self.run_path)


def where_kept(subject: "Subject", result: "Result") -> str:
    """A sentence that names the file of a result, or says why there is none."""
    if subject.results is None:
        return "not kept: not a run, not under its own schedule, or damped; --out keeps it"
    return f"kept in {subject.results / measure_of(type(result)).file}"
