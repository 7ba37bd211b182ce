"""The table that `mixerloop runs` prints."""

from collections.abc import Sequence

from mixerloop.messages import printable, shell_word
from mixerloop.notation import shortened
from mixerloop.progress_line import duration
from mixerloop.text_tables import table_of, text_of
from mixerloop.training.status import Status


def runs_text(runs: Sequence[Status]) -> str:
    """A row for each run, what is damaged, and the command that resumes the first stopped run."""
    numbers = ("step", "of", "loss", "held-out", "tokens/s", "time")
    table = table_of("run", "state", "schedule", *numbers)
    for column in table.columns[:3]:
        column.justify, column.overflow = "left", "fold"
    for run in runs:
        table.add_row(
            *(run.run, run.state),
            shortened(run.schedule or "", most=60),
            *(_number(run.step, ","), _number(run.total_steps, ",")),
            *(_number(run.loss, ".4f"), _number(run.held_out_nll, ".4f")),
            _number(run.tokens_per_second, ",.0f"),
            "" if run.seconds is None else duration(run.seconds),
        )
    text = f"{text_of(table)}\n"
    text += "".join(f"damaged: {printable(run.problem)}\n" for run in runs if run.problem)
    stopped = next((run for run in runs if run.state == "stopped"), None)
    if stopped is not None:
        text += f"go on: mixerloop train --resume {shell_word(stopped.run)}\n"
    return text.removesuffix("\n")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
