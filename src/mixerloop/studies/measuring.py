"""The measurements of a cell: whether a study can take a measure, and how it takes it."""

from dataclasses import replace
from typing import Protocol

from mixerloop.config import RunConfig
from mixerloop.data.held_out import chosen_documents
from mixerloop.data.prepared import Prepared
from mixerloop.data.shards import TokenSplit
from mixerloop.data.tasks.hops import Hops
from mixerloop.data.tasks.registry import TASKS
from mixerloop.data.windows import Draw, spread_positions
from mixerloop.evaluation.core.bundle import find_bundle
from mixerloop.evaluation.core.core_result import CoreResult
from mixerloop.evaluation.core.evaluate_core import evaluate_core
from mixerloop.evaluation.held_out_nll import evaluate_nll
from mixerloop.evaluation.hops_accuracy import evaluate_hops
from mixerloop.evaluation.hops_result import HopsResult
from mixerloop.evaluation.nll_result import NllResult
from mixerloop.evaluation.task_accuracy import evaluate_task
from mixerloop.evaluation.task_result import TaskResult
from mixerloop.measures import load, measure_named
from mixerloop.model.initialization import meta_model
from mixerloop.progress_line import ProgressLine, counting
from mixerloop.reports.transport_figures import write_transport_figures
from mixerloop.results import Result
from mixerloop.studies.table import Row
from mixerloop.study_folder import TransportSettings
from mixerloop.subject import Subject
from mixerloop.transport.measurement import Looking, measure_transport
from mixerloop.transport.result import TransportResult
from mixerloop.transport.routing import measure_routing, repeated_layers
from mixerloop.transport.routing_result import RoutingResult


class Take(Protocol):
    """Measures a subject as a row of a study asks, shows progress, and saves the result."""

    def __call__(self, subject: Subject, row: Row, line: ProgressLine) -> Result:
        """`line` shows progress; the caller closes it."""
        ...


class Check(Protocol):
    """Raises if a measure of a model cannot succeed; called before the model is trained."""

    def __call__(self, data: Prepared | None, config: RunConfig, row: Row) -> None:
        """`data` is None for a text that is not prepared yet; the check is repeated when it is."""
        ...


def check_measure(name: str, data: Prepared | None, config: RunConfig, row: Row) -> None:
    """Reject a measure that cannot be taken of a model after its training."""
    if (path := measure_named(name).check) is not None:
        check: Check = load(path)
        check(data, config, row)


def check_core(data: Prepared | None, config: RunConfig, row: Row) -> None:
    """CORE needs its questions, and a tokenizer with a start token."""
    if data is None:
        return
    tokenizer = data.tokenizer()
    if tokenizer is None:
        raise ValueError("core asks in text, and this data has no tokenizer")
    if tokenizer.bos_id < 0:
        raise ValueError("core's prompts begin with a start token, and this tokenizer has none")
    find_bundle(None)


def check_nll(data: Prepared | None, config: RunConfig, row: Row) -> None:
    """The held-out documents must suffice for an interval."""
    if data is None:
        return
    if data.task is not None:
        number = data.task.num_windows
    else:
        number = len(TokenSplit(data.folder, "held_out").document_starts())
    chosen_documents(number, row.documents or "all")


def check_hops(data: Prepared | None, config: RunConfig, row: Row) -> None:
    """The data must be hops."""
    if data is None or not isinstance(data.task, Hops):
        raise ValueError("hops can be measured on hops only")


def check_task(data: Prepared | None, config: RunConfig, row: Row) -> None:
    """The data must be a synthetic task."""
    if data is None or data.task is None:
        raise ValueError(f"task can be measured on {' or '.join(TASKS)} only")


def check_transport(data: Prepared | None, config: RunConfig, row: Row) -> None:
    """The held-out set must have the windows, and a window the positions."""
    looking = _looking(row)
    if data is None:
        spread_positions(looking.context, looking.positions)
    elif data.task is None:
        draw = Draw(num=looking.windows, num_positions=looking.positions, seed=looking.seed)
        data.draw(draw, context=looking.context)
    else:
        task, answers = data.task, len(data.task.answer_positions())
        if looking.windows > task.num_windows:
            most = f"{task.num_windows:,}, the held-out sequences of {task.name}"
            raise ValueError(f"windows must be at most {most}, got {looking.windows:,}")
        # The default reads all answers of a task that has fewer.
        if answers < looking.positions != TransportSettings().positions:
            most = f"{answers}, the answers of a sequence of {task.name}"
            raise ValueError(f"positions must be at most {most}, got {looking.positions:,}")


def check_routing(data: Prepared | None, config: RunConfig, row: Row) -> None:
    """A repeated ffn must choose experts, and the windows are those of transport."""
    repeated_layers(meta_model(config.model, form="torch"), config.model.occurrences())
    check_transport(data, config, row)


def measure(subject: Subject, name: str, row: Row) -> Result:
    """Take one measure of a subject as its row asks; the result is saved in the run."""
    take: Take = load(measure_named(name).take)
    line = ProgressLine()
    try:
        return take(replace(subject, compute_dtype=row.measured_in(name)), row, line)
    finally:
        line.close()


def take_nll(subject: Subject, row: Row, line: ProgressLine) -> NllResult:
    """The held-out NLL on the data of the part."""
    progress = counting(line, "tokens")
    return evaluate_nll(subject, documents=row.documents or "all", progress=progress)


def take_hops(subject: Subject, row: Row, line: ProgressLine) -> HopsResult:
    """The accuracy on all held-out sequences of the part."""
    return evaluate_hops(subject)


def take_task(subject: Subject, row: Row, line: ProgressLine) -> TaskResult:
    """The accuracy on all held-out sequences of the part's synthetic task."""
    return evaluate_task(subject)


def take_core(subject: Subject, row: Row, line: ProgressLine) -> CoreResult:
    """The scores on all tasks of CORE."""
    return evaluate_core(
        subject, progress=lambda progress: line.show(*progress.parts, share=progress.share)
    )


def take_transport(subject: Subject, row: Row, line: ProgressLine) -> TransportResult:
    """Transport of the trained model and of its control before training, with figures."""
    looking = _looking(row)
    result = measure_transport(subject, looking, control=True, progress=counting(line, "windows"))
    assert subject.results is not None  # a run under its own schedule has a results folder
    warning = write_transport_figures(result, subject.results)
    if warning is not None:
        line.say(warning)
    return result


def take_routing(subject: Subject, row: Row, line: ProgressLine) -> RoutingResult:
    """Routing divergence in the windows of transport."""
    return measure_routing(subject, _looking(row))


def _looking(row: Row) -> Looking:
    settings = row.transport
    return Looking(
        windows=settings.windows,
        positions=settings.positions,
        context=settings.context,
        removal=settings.removal,
    )
