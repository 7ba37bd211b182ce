"""The metrics of each step, and where they are written: JSON lines, TensorBoard, Weights & Biases.

`metrics.jsonl` holds computed values. Its bytes do not depend on how often the run was stopped and
resumed. `timing.jsonl` holds the speed of each step, which differs from run to run.
"""

import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mixerloop import runs
from mixerloop.files import naming, write_file

FLUSH_SECONDS = 30  # new points reach TensorBoard after at most this time


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Values computed by one step; the same in every repetition of a run."""

    step: int
    """Number of updates, this step included."""
    tokens: int
    """Tokens trained on from step 0, this step included."""
    flops: float
    """Operations from step 0, forward and backward, loops counted."""
    loss: float
    """Mean loss of the step's batch, before its update."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """The parts of the loss by name, if there are several: nll, nll.pass0, balance."""
    grad_norm: float
    """Norm of the gradient before clipping."""
    learning_rate: float
    passes: int | None = None
    """Passes that the step trained; None where all steps, or sequences of a step, train alike."""
    held_out_nll: float | None
    """The validation NLL after the update; None at steps that do not measure it."""
    held_out_passes: int | None = None
    """Passes that validation makes; None where they are always the model's own."""

    def record(self) -> dict[str, float]:
        """The line of metrics.jsonl, with a key `loss.PART` for each part of the loss."""
        present = {key: value for key, value in vars(self).items() if value is not None}
        parts = {f"loss.{name}": value for name, value in present.pop("parts").items()}
        return present | parts

    @property
    def nll(self) -> float:
        """The loss without auxiliary losses, so that models with and without them compare."""
        return self.parts.get("nll", self.loss)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The speed of one step."""

    step: int
    seconds: float
    """Duration of this step alone."""
    tokens_per_second: float
    gemm_share: float
    """Operations per second over those of a plain matrix product on the same machine."""
    seconds_left: float
    """Estimated time until the budget is spent, from the mean speed of all steps."""
    threads: int
    """Torch's threads on the first rank; fewer while other programs keep cores busy."""

    def record(self) -> dict[str, float]:
        """The line of timing.jsonl."""
        return dict(vars(self))


class Watcher(Protocol):
    """Receives the metrics of every step of a session: a file, a chart or a progress line."""

    def step(self, metrics: Metrics, timing: Timing) -> None:
        """Take the metrics of a step that has been made."""
        ...

    def flush(self) -> None:
        """Write all steps received to the disk; called before a checkpoint is written."""
        ...

    def close(self) -> None:
        """Release files and connections; no step follows."""
        ...


class JsonLines:
    """Appends to `metrics.jsonl` and `timing.jsonl`, which end at the step of the checkpoint."""

    def __init__(self, run: Path) -> None:
        self._metrics = _JsonLinesFile(run / runs.METRICS)
        self._timing = _JsonLinesFile(run / runs.TIMING)

    def step(self, metrics: Metrics, timing: Timing) -> None:
        """Append one line to each file."""
        for file, record in ((self._metrics, metrics), (self._timing, timing)):
            file.append(json.dumps(record.record(), allow_nan=False) + "\n")

    def flush(self) -> None:
        """Wait until the lines are on the disk; a file that somebody changed is written anew."""
        self._metrics.flush()
        self._timing.flush()

    def close(self) -> None:
        """Close the two files."""
        self._metrics.close()
        self._timing.close()


class _JsonLinesFile:
    """A file that grows by lines.

    Its content is also kept in memory, a few hundred bytes for each step, so that a file that was
    cut off or deleted in the middle of training is noticed and written anew.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._content = bytearray(path.read_bytes())

    def append(self, line: str) -> None:
        self._content += line.encode()
        with naming(self._path):
            self._file.write(line.encode())

    def flush(self) -> None:
        with naming(self._path):
            os.fsync(self._file.fileno())
        if not self._path.is_file() or self._path.read_bytes() != self._content:
            self._file.close()
            write_file(self._path, bytes(self._content))
            self._file = self._path.open("ab", buffering=0)

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """Writes event files; TensorBoard hides points after the step a run is resumed from.

    The writer of `torch` has a thread of its own, which opens the file again and again and prints
    a traceback if that fails.
    """

    def __init__(self, run: Path, *, start: int) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._messages: Any = vars(event_pb2) | vars(summary_pb2)  # made when they are imported
        folder = run / runs.TENSORBOARD
        name = f"events.out.tfevents.{time.time_ns()}.{platform.node()}.{os.getpid()}"
        self._path = folder / name
        with naming(self._path):
            folder.mkdir(exist_ok=True)
            self._file = self._path.open("xb")
        self._writer = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")
        log = self._messages["SessionLog"]
        self._add(step=start + 1, session_log=log(status=log.START))
        self.flush()

    def _add(self, **content: Any) -> None:
        event = self._messages["Event"](wall_time=time.time(), **content)
        with naming(self._path):
            self._writer.write(event.SerializeToString())

    def step(self, metrics: Metrics, timing: Timing) -> None:
        """Add a point to each chart."""
        summary = self._messages["Summary"]
        points = [
            summary.Value(tag=name, simple_value=value)
            for name, value in _charts(metrics, timing).items()
        ]
        self._add(step=metrics.step, summary=summary(value=points))
        if time.monotonic() - self._flushed_at >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write buffered points to the event file."""
        with naming(self._path):
            self._file.flush()
        self._flushed_at = time.monotonic()

    def close(self) -> None:
        """Write buffered points and close the event file."""
        with naming(self._path):
            self._file.close()


class WeightsAndBiases:
    """Logs to a Weights & Biases run of the same name; `WANDB_MODE=offline` logs to the disk."""

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
        """Add a point to each chart."""
        self._run.log(_charts(metrics, timing), step=metrics.step, commit=True)

    def flush(self) -> None:
        """Nothing to do: wandb sends points by itself."""

    def close(self) -> None:
        """Send the remaining points and end the Weights & Biases run."""
        self._run.finish()


def _charts(metrics: Metrics, timing: Timing) -> dict[str, float]:
    charts = {
        "train/loss": metrics.loss,
        "train/grad_norm": metrics.grad_norm,
        "train/learning_rate": metrics.learning_rate,
        "speed/tokens_per_second": timing.tokens_per_second,
        "speed/gemm_share": timing.gemm_share,
    }
    charts |= {f"train/loss.{name}": value for name, value in metrics.parts.items()}
    if metrics.passes is not None:
        charts["train/passes"] = metrics.passes
    if metrics.held_out_nll is not None:
        charts["held_out/nll"] = metrics.held_out_nll
    return charts
