"""The measurements of a cell."""

from pathlib import Path

from mixerloop.evaluation.core.evaluate_core import evaluate_core
from mixerloop.evaluation.held_out_nll import evaluate_nll
from mixerloop.evaluation.hops_accuracy import evaluate_hops
from mixerloop.interop.loading import open_subject
from mixerloop.progress_line import ProgressLine, counting
from mixerloop.reports.transport_figures import write_transport_figures
from mixerloop.studies.study import Measure, PartSettings
from mixerloop.transport.measurement import Looking, measure_transport


def measure_run(run: Path, measure: Measure, part: PartSettings) -> None:
    """Take one measurement of a run as its part asks, and keep the result in the run."""
    subject = open_subject(run, compute_dtype=getattr(part.measure_in, measure))
    line = ProgressLine()
    match measure:
        case "nll":
            evaluate_nll(subject, progress=counting(line, "tokens"))
        case "hops":
            evaluate_hops(subject)
        case "core":
            evaluate_core(subject, progress=lambda progress: line.show(str(progress)))
        case "transport":
            asked = part.transport
            looking = Looking(
                windows=asked.windows,
                positions=asked.positions,
                context=asked.context,
                removal=asked.removal,
            )
            result = measure_transport(
                subject, looking, control=True, progress=counting(line, "windows")
            )
            assert subject.results is not None  # a run under its own schedule keeps results
            write_transport_figures(result.to_json(), subject.results)
    line.close()
