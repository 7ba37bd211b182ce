"""The measurements of a cell: how a study takes each measure of a run."""

from pathlib import Path
from typing import Protocol

from mixerloop.evaluation.core.core_result import CoreResult
from mixerloop.evaluation.core.evaluate_core import evaluate_core
from mixerloop.evaluation.held_out_nll import evaluate_nll
from mixerloop.evaluation.hops_accuracy import evaluate_hops
from mixerloop.evaluation.hops_result import HopsResult
from mixerloop.evaluation.nll_result import NllResult
from mixerloop.evaluation.task_accuracy import evaluate_task
from mixerloop.evaluation.task_result import TaskResult
from mixerloop.interop.loading import open_subject
from mixerloop.measures import load, measure_named
from mixerloop.progress_line import ProgressLine, counting
from mixerloop.reports.transport_figures import write_transport_figures
from mixerloop.results import Result
from mixerloop.studies.variants import Variant
from mixerloop.subject import Subject
from mixerloop.transport.measurement import Looking, measure_transport
from mixerloop.transport.result import TransportResult
from mixerloop.transport.routing import measure_routing
from mixerloop.transport.routing_result import RoutingResult


class Take(Protocol):
    """Measures a subject as a part of a study asks, shows progress, and saves the result."""

    def __call__(self, subject: Subject, variant: Variant, line: ProgressLine) -> Result:
        """`line` shows progress; the caller closes it."""
        ...


def measure_run(run: Path, measure: str, variant: Variant) -> Result:
    """Take one measure of a run as its part asks; the result is saved in the run."""
    take: Take = load(measure_named(measure).take)
    subject = open_subject(run, compute_dtype=variant.part.measured_in(measure))
    line = ProgressLine()
    try:
        return take(subject, variant, line)
    finally:
        line.close()


def take_nll(subject: Subject, variant: Variant, line: ProgressLine) -> NllResult:
    """The held-out NLL on the data of the part."""
    progress = counting(line, "tokens")
    return evaluate_nll(subject, documents=variant.documents, progress=progress)


def take_hops(subject: Subject, variant: Variant, line: ProgressLine) -> HopsResult:
    """The accuracy on all held-out sequences of the part."""
    return evaluate_hops(subject)


def take_task(subject: Subject, variant: Variant, line: ProgressLine) -> TaskResult:
    """The accuracy on all held-out sequences of the part's synthetic task."""
    return evaluate_task(subject)


def take_core(subject: Subject, variant: Variant, line: ProgressLine) -> CoreResult:
    """The scores on all tasks of CORE."""
    return evaluate_core(
        subject, progress=lambda progress: line.show(*progress.parts, share=progress.share)
    )


def take_transport(subject: Subject, variant: Variant, line: ProgressLine) -> TransportResult:
    """Transport of the trained model and of its control before training, with figures."""
    looking = _looking(variant)
    result = measure_transport(subject, looking, control=True, progress=counting(line, "windows"))
    assert subject.results is not None  # a run under its own schedule has a results folder
    warning = write_transport_figures(result, subject.results)
    if warning is not None:
        line.say(warning)
    return result


def take_routing(subject: Subject, variant: Variant, line: ProgressLine) -> RoutingResult:
    """Routing divergence in the windows of transport."""
    return measure_routing(subject, _looking(variant))


def _looking(variant: Variant) -> Looking:
    settings = variant.part.transport
    return Looking(
        windows=settings.windows,
        positions=settings.positions,
        context=settings.context,
        removal=settings.removal,
    )
