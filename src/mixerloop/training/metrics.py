"""What a run says about each step, and to whom: JSON lines, TensorBoard, Weights & Biases.

`metrics.jsonl` holds what the run computed and is the same, byte for byte, however often the run
was stopped and resumed; `timing.jsonl` holds how fast it went, which no two runs share.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mixerloop import runs
from mixerloop.files import write_file

FLUSH_SECONDS = 30  # how long TensorBoard may wait for new points


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """What one step computed."""

    step: int
    """Updates made so far, this one included."""
    tokens: int
    """Tokens trained on so far."""
    flops: float
    """Operations spent so far, forward and backward, loops counted."""
    loss: float
    """Mean loss of the step's batch, before its update."""
    grad_norm: float
    """Before clipping."""
    learning_rate: float
    held_out_nll: float | None
    """The validation NLL after the update; only at steps that measure it."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How fast one step was."""

    step: int
    seconds: float
    """Of this step alone."""
    tokens_per_second: float
    gemm_share: float
    """Operations per second over those of a plain matrix product on the same machine."""
    seconds_left: float
    """Until the budget is spent, at the mean speed so far."""
    threads: int
    """Torch's, on the first rank; fewer while other programs keep cores busy."""


class Watcher(Protocol):
    """Whoever wants to know."""

    def step(self, metrics: Metrics, timing: Timing) -> None:
        """A step has been made."""
        ...

    def flush(self) -> None:
        """A checkpoint will be written: what was said so far must be on the disk."""
        ...

    def close(self) -> None:
        """There will be no more."""
        ...


class JsonLines:
    """`metrics.jsonl` and `timing.jsonl`."""

    def __init__(self, run: Path, *, start: int) -> None:
        for name in (runs.METRICS, runs.TIMING):
            cut_back(run / name, start)
        self._metrics = (run / runs.METRICS).open("a", encoding="utf-8")
        self._timing = (run / runs.TIMING).open("a", encoding="utf-8")

    def step(self, metrics: Metrics, timing: Timing) -> None:
        """One line each."""
        for file, record in ((self._metrics, metrics), (self._timing, timing)):
            present = {key: value for key, value in vars(record).items() if value is not None}
            file.write(json.dumps(present, allow_nan=False) + "\n")
            file.flush()

    def flush(self) -> None:
        """Wait for the disk."""
        for file in (self._metrics, self._timing):
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close both files."""
        self._metrics.close()
        self._timing.close()


class TensorBoard:
    """Event files; points after the step a run is resumed from are hidden by TensorBoard."""

    def __init__(self, run: Path, *, start: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(
            str(run / runs.TENSORBOARD),
            purge_step=start + 1,
            flush_secs=FLUSH_SECONDS,
        )

    def step(self, metrics: Metrics, timing: Timing) -> None:
        """One point in each chart."""
        for name, value in _charts(metrics, timing).items():
            self._writer.add_scalar(name, value, metrics.step)

    def flush(self) -> None:
        """Write what is waiting."""
        self._writer.flush()

    def close(self) -> None:
        """Write what is waiting, and end."""
        self._writer.close()


class WeightsAndBiases:
    """A run of the same name at Weights & Biases; `WANDB_MODE=offline` keeps it on the disk."""

    def __init__(self, run: Path, *, project: str, identity: str, config: dict[str, Any]) -> None:
        import wandb
        from wandb.errors import Error

        try:
            self._run = wandb.init(
                project=project,
                name=run.resolve().name,
                id=identity,
                resume="allow",
                config=config,
                dir=str(run),
            )
        except Error as error:
            raise ValueError(f"train.wandb = {project}: {error}") from None

    def step(self, metrics: Metrics, timing: Timing) -> None:
        """One point in each chart."""
        self._run.log(_charts(metrics, timing), step=metrics.step, commit=True)

    def flush(self) -> None:
        """It sends by itself."""

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()


def last_line(path: Path, *, having: str = "step") -> dict[str, Any]:
    """The last record that has a key, or nothing."""
    for line in reversed(_whole_lines(path)):
        if having in (record := _record(path, line)):
            return record
    return {}


def cut_back(path: Path, step: int) -> None:
    """Keep the records up to a step: what came after it will be done again."""
    if path.exists():
        kept = [line for line in _whole_lines(path) if _record(path, line)["step"] <= step]
        write_file(path, "".join(kept))


def _whole_lines(path: Path) -> list[str]:
    """The lines of a file that grows; a last one cut off by a kill is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n")]


def _record(path: Path, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if (
        not isinstance(record, dict)
        or not all(type(value) in (int, float) for value in record.values())
        or type(record.get("step")) is not int
    ):
        raise ValueError(f"{path}: damaged, this is no record of a step: {line.strip()[:60]!r}")
    return record


def _charts(metrics: Metrics, timing: Timing) -> dict[str, float]:
    charts = {
        "train/loss": metrics.loss,
        "train/grad_norm": metrics.grad_norm,
        "train/learning_rate": metrics.learning_rate,
        "speed/tokens_per_second": timing.tokens_per_second,
        "speed/gemm_share": timing.gemm_share,
    }
    if metrics.held_out_nll is not None:
        charts["held_out/nll"] = metrics.held_out_nll
    return charts
