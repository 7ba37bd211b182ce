"""Plans and states of studies as text."""

from mixerloop.progress_line import duration
from mixerloop.studies.overview import StudyStatus
from mixerloop.studies.running import PlannedStudy
from mixerloop.text_tables import table_of, text_of


def plan_text(planned: PlannedStudy) -> str:
    """The cells, the compute types, and how long the training will take."""
    plan = planned.plan
    table = table_of("cell", "name", "parameters", "MFLOP/token", "state", "training")
    for entry in planned.cells:
        expected = entry.expected_seconds
        table.add_row(
            str(entry.row.number),
            entry.row.run,
            f"{entry.row.parameters:,}",
            f"{entry.row.flops_per_token / 1e6:,.1f}",
            entry.state.state,
            "" if expected is None else duration(expected),
        )
    lines = [
        plan.file.study.title,
        f"{len(plan.rows)} cells, kept in {plan.folder}",
        text_of(table),
    ]
    for part, types in planned.precision().items():
        lines.append(f"{part}: {', '.join(f'{what} in {dtype}' for what, dtype in types.items())}")
    seconds = [
        entry.expected_seconds for entry in planned.cells if entry.expected_seconds is not None
    ]
    if seconds:
        jobs = planned.expected_jobs
        together = max(sum(seconds) / jobs, *seconds)
        at_a_time = f", {jobs} cells at a time" if jobs > 1 else ""
        lines.append(f"expected: {duration(together)} of training{at_a_time}, and then measuring")
    return "\n".join(lines)


def status_text(status: StudyStatus) -> str:
    """The state of every cell, and how many are done."""
    table = table_of("cell", "name", "state", "step", "of", "trained", "problem")
    table.columns[-1].overflow = "fold"  # the name of a file is shown whole
    for cell in status.cells:
        state = cell.state
        table.add_row(
            str(cell.number),
            cell.name,
            state.state,
            "" if state.step is None else f"{state.step:,}",
            "" if state.total_steps is None else f"{state.total_steps:,}",
            "" if state.train_seconds is None else duration(state.train_seconds),
            state.error or "",
        )
    done = sum(cell.state.state == "done" for cell in status.cells)
    return "\n".join(
        (
            f"{status.folder}: {status.title}",
            text_of(table),
            f"{done} of {len(status.cells)} cells are done",
        )
    )
