"""`measure_transport`: what each pass of a subject's mixers does at the readout."""

import dataclasses
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mixerloop import machine
from mixerloop.config import (
    ComputeDtype,
    Device,
    FormChoice,
    InitRule,
    check_fits,
    preset,
)
from mixerloop.data.prepared import open_prepared
from mixerloop.data.windows import Draw, DrawnWindows
from mixerloop.files import check_can_hold, json_text, write_file
from mixerloop.model.device import find_device
from mixerloop.model.initialization import fresh_model
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.ops.gated_delta_rule import choose_form
from mixerloop.provenance import collect_provenance
from mixerloop.subject import Heading, Subject
from mixerloop.transport.result import transport_result
from mixerloop.transport.windows import uniform_windows

TRANSPORT = "transport.json"
Progress = Callable[[str, int, int], None]
"""Called with the model that is measured, the windows measured so far, and all windows."""


@dataclass(frozen=True, kw_only=True)
class Looking:
    """Which windows are measured, and what beside the passes."""

    windows: int = 16
    """Windows."""
    positions: int = 16
    """Positions in the second half of each window."""
    context: int = 128
    """Tokens of a window."""
    removal: bool = False
    """Also remove each pass and each ffn, and swap their order."""
    second_draw: bool = False
    """Draw other windows, none of which is in the first draw."""
    seed: int = 0
    """Seed of the draw and of the resampling."""

    def __post_init__(self) -> None:
        """Reject numbers that give no interval."""
        if self.windows < 2:
            raise ValueError(f"windows must be at least 2, got {self.windows}")
        if self.positions < 1:
            raise ValueError(f"positions must be at least 1, got {self.positions}")


@dataclass(frozen=True, kw_only=True)
class TransportResult:
    """The transport of one model and, if measured, of its control."""

    heading: Heading | None
    """None for a model that is not loaded from a folder."""
    figures: dict[str, Any]
    control: dict[str, Any] | None
    """The same figures before training."""
    provenance: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The content of transport.json."""
        return {
            **({} if self.heading is None else asdict(self.heading)),
            **self.figures,
            "control": self.control,
            "provenance": self.provenance,
        }


def measure_transport(
    subject: Subject,
    looking: Looking | None = None,
    *,
    data: Path | str | None = None,
    control: bool = False,
    progress: Progress | None = None,
) -> TransportResult:
    """Restore the context of one pass after another, and keep the result.

    `control` also measures the weights that the run's seed drew, before training. `data` is the
    folder the subject was trained on where it is not given.
    """
    looking = Looking() if looking is None else looking
    prepared = open_prepared(subject.data(data))
    draw = Draw(
        num=looking.windows,
        num_positions=looking.positions,
        seed=looking.seed,
        number=int(looking.second_draw),
    )
    windows = prepared.draw(draw, context=looking.context)
    check_fits(prepared.folder, prepared.vocab_size, subject.config.model.vocab_size)
    train = subject.config.train
    if control and train is None:
        raise ValueError(f"{subject.folder}: was not trained, so it is its own control")
    figures = _figures(subject.model, windows, subject, looking, "trained", progress)
    control_figures = None
    if control and train is not None:
        fresh = fresh_model(
            subject.config.model,
            seed=train.seed,
            rule=train.init,
            form=subject.model.form,
        ).to(subject.device)
        without_removal = dataclasses.replace(looking, removal=False)
        control_figures = _figures(fresh, windows, subject, without_removal, "control", progress)
    result = TransportResult(
        heading=subject.heading(),
        figures=figures,
        control=control_figures,
        provenance=subject.provenance(
            data=prepared.fingerprint, draw_seed=looking.seed, draw=int(looking.second_draw)
        ),
    )
    subject.keep(TRANSPORT, result.to_json())
    return result


def measure_fresh_transport(
    size: str,
    looking: Looking | None = None,
    *,
    schedule: str | None = None,
    init: InitRule = "shared",
    compute_dtype: ComputeDtype = "float32",
    form: FormChoice = "auto",
    device: Device = "auto",
    results: Path | None = None,
    progress: Progress | None = None,
) -> TransportResult:
    """Measure fresh weights of a preset on uniformly drawn token ids; keep in `results`, if given.

    The seed of `looking` draws the weights too.
    """
    looking = Looking() if looking is None else looking
    machine.keep_freed_memory()
    if results is not None:
        check_can_hold(results)
    config = preset(size)
    config = dataclasses.replace(config, schedule=schedule or config.schedule)
    found_device = find_device(device, option="device")
    windows = uniform_windows(
        config.vocab_size,
        num=looking.windows,
        context=looking.context,
        num_positions=looking.positions,
        seed=looking.seed,
        draw=int(looking.second_draw),
    )
    model = fresh_model(
        config,
        seed=looking.seed,
        rule=init,
        form=choose_form(form, found_device.type),
    ).to(found_device)
    figures = transport_result(
        model,
        windows,
        compute_dtype=compute_dtype,
        seed=looking.seed,
        removal=looking.removal,
        progress=None if progress is None else partial(progress, "fresh"),
    )
    result = TransportResult(
        heading=None,
        figures=figures,
        control=None,
        provenance=collect_provenance(
            seed=looking.seed,
            preset=size,
            init=init,
            data="uniform token ids",
            forms=model.forms(),
            compute_dtype=compute_dtype,
            device=found_device.type,
        ),
    )
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        write_file(results / TRANSPORT, json_text(result.to_json()))
    return result


def _figures(
    model: LoopedLM,
    windows: DrawnWindows,
    subject: Subject,
    looking: Looking,
    name: str,
    progress: Progress | None,
) -> dict[str, Any]:
    return transport_result(
        model,
        windows,
        schedule=subject.schedule,
        compute_dtype=subject.compute_dtype,
        seed=looking.seed,
        removal=looking.removal,
        progress=None if progress is None else partial(progress, name),
    )
