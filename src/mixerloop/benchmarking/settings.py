"""The settings of each benchmark; `mixerloop bench` reads its options from these dataclasses.

This module loads no torch, so that the command line can show the settings without it. Each
benchmark calls `check` before it measures. The option parser would catch an error that the
constructor raises, and print more than one line.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mixerloop import paper
from mixerloop.config import ComputeDtype, ComputeDtypeChoice, Device, FormChoice
from mixerloop.parsing import checked, one_of, suggest

MOST = 1_000_000
"""The largest number of a setting: a slip should not start a benchmark that never ends."""
OPERATOR_SHAPES = ("15m", "110m", "square", "long", "channels", "token")


@checked
@dataclass(frozen=True, kw_only=True)
class OperatorSettings:
    """The forms of the gated delta rule beside those of other packages."""

    shapes: tuple[str, ...] = OPERATOR_SHAPES
    """The shapes to time: 15m, 110m, square, long, channels (a decay per channel), token."""
    repeats: int = 10
    """Timed calls of each implementation; slow ones have fewer."""
    strong_decay: bool = False
    """Use decays down to -8, which make products that underflow in float32."""

    def check(self) -> None:
        """Reject unknown shapes."""
        _check_positive(repeats=self.repeats)
        _check_some("shape", self.shapes)
        for name in self.shapes:
            if name not in OPERATOR_SHAPES:
                raise ValueError(f"unknown shape '{name}'; {suggest(name, OPERATOR_SHAPES)}")


@checked
@dataclass(frozen=True, kw_only=True)
class PrefillSettings:
    """Prompts read under each loop."""

    sizes: tuple[str, ...] = ("15m",)
    """Presets, runs or exported folders; their weights do not matter and are drawn afresh."""
    batches: tuple[int, ...] = (1, 4, 8)
    """Prompts read at once."""
    length: int = 1024
    """Tokens of a prompt."""
    compute_dtype: ComputeDtype = "float32"
    """The type of the projections."""
    device: Device = "auto"
    """The device to run on."""
    warmup: int = 6
    """Untimed calls before the timed calls."""
    repeats: int = 20
    """Timed calls of each loop."""

    def check(self) -> None:
        """Reject numbers below 1 and empty lists, which leave nothing to time."""
        _check_positive(length=self.length, repeats=self.repeats, warmup=self.warmup)
        _check_some("batch", self.batches)
        _check_some("size", self.sizes)
        for batch in self.batches:
            _check_positive(batches=batch)


@checked
@dataclass(frozen=True, kw_only=True)
class DecodeSettings:
    """Tokens decoded after prefixes of different lengths."""

    size: str = "15m"
    """A preset, a run or an exported folder; its weights do not matter and are drawn afresh."""
    schedule: str = "mixer_loop"
    """Notation or a named loop."""
    repeats: int = 60
    """Timed tokens after each prefix."""

    def check(self) -> None:
        """Reject numbers below 1 and empty lists, which leave nothing to time."""
        _check_positive(repeats=self.repeats)


@checked
@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Training steps against their matrix products."""

    size: str = "15m"
    """A preset, a run or an exported folder; its weights do not matter and are drawn afresh."""
    loops: tuple[str, ...] = ("no_loop", "mixer_loop", "full_loop")
    """The schedules to train."""
    mixer: tuple[str, ...] = ()
    """Time these mixers, with as many parameters, against gated_delta_net instead."""
    batch: int = 4
    """Windows of a step."""
    length: int = 1024
    """Tokens of a window."""
    compute_dtype: ComputeDtypeChoice = "auto"
    """The type of the projections; auto is the type that training chooses here."""
    form: str = "auto"
    """The form of the operator: auto, native, torch or definition."""
    repeats: int = 5
    """Timed steps."""

    def check(self) -> None:
        """Reject unknown forms, numbers below 1 and empty lists."""
        _check_positive(batch=self.batch, length=self.length, repeats=self.repeats)
        one_of(FormChoice, self.form, "form")
        _check_some("loop", self.loops)


@checked
@dataclass(frozen=True, kw_only=True)
class TransportSettings:
    """Transport with shared walks against a forward pass for each policy."""

    size: str = "15m"
    """A preset, a run or an exported folder; its weights do not matter and are drawn afresh."""
    schedule: str = "mixer_loop"
    """Notation or a named loop."""
    windows: int = 16
    """Windows to measure."""
    positions: int = 16
    """Positions to measure in each window."""
    context: int = 128
    """Tokens of a window."""
    repeats: int = 3
    """Timed calls of each engine."""

    def check(self) -> None:
        """Reject numbers below 1, and positions that a window has no room for."""
        _check_positive(
            windows=self.windows,
            positions=self.positions,
            context=self.context,
            repeats=self.repeats,
        )
        room = self.context - 1 - self.context // 2
        if self.positions > room:
            raise ValueError(
                f"positions: {self.positions} do not fit the second half of a context of "
                f"{self.context} tokens, which has room for {room}"
            )


@checked
@dataclass(frozen=True, kw_only=True)
class CoreSettings:
    """CORE with shared prefixes against CORE with every sequence run whole."""

    run_path: Path | None = None
    """A run; by default a fresh model with a tokenizer trained on the examples."""
    size: str = "nano"
    """The preset of a fresh model."""
    schedule: str | None = None
    """Notation or a named loop; by default the model's own."""
    bundle: Path | None = None
    """The evaluation bundle."""
    tasks: tuple[str, ...] = ()
    """The tasks to score; by default all."""
    examples: int = 20
    """Examples of each task."""
    context: int = paper.CORE_CONTEXT
    """The most tokens of a prompt; longer prompts lose their beginning."""
    threads: int | None = None
    """Threads of both scorers; by default as many as torch uses."""
    repeats: int = 5
    """Timed rounds."""

    def check(self) -> None:
        """Reject numbers below 1 and empty lists, which leave nothing to time."""
        _check_positive(examples=self.examples, context=self.context, repeats=self.repeats)
        if self.threads is not None:
            _check_positive(threads=self.threads)


def _check_positive(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
        if value > MOST:
            raise ValueError(f"{name} must be at most {MOST:,}, got {value}")


def _check_some(kind: str, given: Sequence[object]) -> None:
    if not given:
        raise ValueError(f"name at least one {kind}")
