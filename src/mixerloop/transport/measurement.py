"""`measure_transport`: the effect of each mixer pass of a subject at the readout."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mixerloop import machine
from mixerloop.config import (
    ComputeDtype,
    Device,
    FormChoice,
    InitRule,
    TrainConfig,
    check_seed,
    preset,
)
from mixerloop.data.windows import Draw, DrawnWindows
from mixerloop.files import check_can_hold
from mixerloop.kinds import check_size
from mixerloop.measures import measure_of
from mixerloop.model.checkpoint import load_model
from mixerloop.model.device import find_device
from mixerloop.model.initialization import fresh_model
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.notation import notation
from mixerloop.ops.caller_modes import torch_defaults
from mixerloop.ops.gated_delta_rule import choose_form
from mixerloop.parent_record import initial_checkpoint, read_parent
from mixerloop.parsing import checked
from mixerloop.result_files import check_can_write, write_result
from mixerloop.results import result_provenance
from mixerloop.schedule import Schedule
from mixerloop.subject import Subject, forms_of
from mixerloop.transport.figures import noise_floor_figures, summarise, summarise_removals
from mixerloop.transport.noise import noise_floor
from mixerloop.transport.removal import removal_costs
from mixerloop.transport.result import TransportFigures, TransportResult
from mixerloop.transport.trajectories import measure
from mixerloop.transport.windows import uniform_windows

Progress = Callable[[str, int, int], None]
"""Called with the name of the measured model, the number of measured windows, and the total."""


@checked
@dataclass(frozen=True, kw_only=True)
class Looking:
    """The windows to measure, and whether removals are measured too."""

    windows: int = 16
    """The number of windows."""
    positions: int = 16
    """The number of positions, in the second half of each window."""
    context: int = 128
    """The number of tokens of a window."""
    removal: bool = False
    """Also remove each pass and each ffn, and swap their order."""
    second_draw: bool = False
    """Draw other windows, none of which is in the first draw."""
    seed: int = 0
    """The random seed of the draw and of the resampling."""

    def __post_init__(self) -> None:
        """Reject too few windows for an interval, and too few positions."""
        if self.windows < 2:
            raise ValueError(f"windows must be at least 2, got {self.windows}")
        for name in ("windows", "positions", "context"):
            check_size(name, getattr(self, name))
        check_seed(self.seed)


@checked
@torch_defaults()
def measure_transport(
    subject: Subject,
    looking: Looking | None = None,
    *,
    data: Path | str | None = None,
    control: bool = False,
    progress: Progress | None = None,
) -> TransportResult:
    """Restore the context of one pass after another, and save the result.

    `control` also measures the initial weights of the run: those that its random seed draws, or
    those that it took from a parent. `data` defaults to the folder the subject was trained on.
    """
    looking = Looking() if looking is None else looking
    subject.check_can_save(TransportResult)
    prepared = subject.open_data(data)
    draw = Draw(
        num=looking.windows,
        num_positions=looking.positions,
        seed=looking.seed,
        number=int(looking.second_draw),
    )
    windows = prepared.draw(draw, context=looking.context)
    train = subject.config.train
    if control and subject.damping is not None:
        raise ValueError("control: the model before training is not damped; leave damping out")
    if control and train is None:
        raise ValueError(f"{subject.folder}: was not trained, so it is its own control")
    if control and read_parent(subject.folder) is not None:
        initial_checkpoint(subject.folder)  # raises if it is gone, before any work

    def figures_of(model: LoopedLM, looking: Looking, name: str) -> TransportFigures:
        return transport_figures(
            model,
            windows,
            schedule=subject.schedule,
            compute_dtype=subject.compute_dtype,
            seed=looking.seed,
            removal=looking.removal,
            progress=None if progress is None else partial(progress, name),
        )

    figures = figures_of(subject.model, looking, "trained")
    control_figures = None
    if control and train is not None:
        without_removal = dataclasses.replace(looking, removal=False)
        control_figures = figures_of(_initial_model(subject, train), without_removal, "control")
    result = TransportResult(
        **subject.heading(),
        **vars(figures),
        control=control_figures,
        provenance=subject.provenance(
            data=prepared.fingerprint, draw_seed=looking.seed, draw=int(looking.second_draw)
        ),
    )
    subject.save(result)
    return result


def _initial_model(subject: Subject, train: TrainConfig) -> LoopedLM:
    """The model of a subject's run before the first step."""
    form = subject.model.form
    if read_parent(subject.folder) is not None:
        model, _ = load_model(initial_checkpoint(subject.folder), form=form)
    else:
        model = fresh_model(subject.config.model, seed=train.seed, rule=train.init, form=form)
    return model.to(subject.device)


@checked
@torch_defaults()
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
    overwrite: bool = False,
    progress: Progress | None = None,
) -> TransportResult:
    """Measure fresh weights of a preset on uniformly drawn token ids.

    The seed of `looking` draws the weights too. The result is saved in `results`, if given;
    `overwrite` also replaces files that this program did not write.
    """
    looking = Looking() if looking is None else looking
    machine.keep_freed_memory()
    if results is not None:
        check_can_hold(results)
        check_can_write(results, measure_of(TransportResult), overwrite=overwrite)
    config = preset(size)
    config = dataclasses.replace(config, schedule=schedule or config.schedule)
    torch_device = find_device(device, option="device")
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
        form=choose_form(form, torch_device.type),
    ).to(torch_device)
    figures = transport_figures(
        model,
        windows,
        schedule=model.schedule,
        compute_dtype=compute_dtype,
        seed=looking.seed,
        removal=looking.removal,
        progress=None if progress is None else partial(progress, "fresh"),
    )
    result = TransportResult(
        checkpoint=None,
        schedule=notation(model.schedule),
        trained_schedule=notation(model.schedule),
        **vars(figures),
        control=None,
        provenance=result_provenance(
            seed=looking.seed,
            preset=size,
            init=init,
            data="uniform token ids",
            forms=forms_of(model),
            compute_dtype=compute_dtype,
            device=torch_device.type,
        ),
    )
    if results is not None:
        write_result(results, result, overwrite=overwrite)
    return result


def transport_figures(
    model: LoopedLM,
    windows: DrawnWindows,
    *,
    schedule: Schedule,
    compute_dtype: ComputeDtype,
    seed: int,
    removal: bool,
    progress: Callable[[int, int], None] | None = None,
) -> TransportFigures:
    """Figures with intervals, the noise floor and, with `removal`, the cost of removals.

    The noise floor is measured first: if the wider type cannot run, nothing long has run in vain.
    """
    noise = noise_floor(model, windows, schedule=schedule, compute_dtype=compute_dtype)
    trajectories = measure(
        model, windows, schedule=schedule, compute_dtype=compute_dtype, progress=progress
    )
    removal_figures = None
    if removal:
        costs = removal_costs(model, windows, schedule=schedule, compute_dtype=compute_dtype)
        removal_figures = summarise_removals(trajectories, costs, seed=seed)
    return TransportFigures(
        **vars(summarise(trajectories, seed=seed)),
        compute_dtype=compute_dtype,
        windows=len(windows.tokens),
        context=windows.tokens.shape[1],
        positions=tuple(windows.positions.tolist()),
        noise_floor=noise_floor_figures(noise),
        removal=removal_figures,
    )
