"""Models from a run, a checkpoint or a folder of `transformers`."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixerloop import config as configs
from mixerloop import machine, runs
from mixerloop.config import (
    ComputeDtype,
    Device,
    FormChoice,
    ModelConfig,
    RunConfig,
)
from mixerloop.files import check_can_hold, file_sha256
from mixerloop.interop.folders import (
    exported_config,
    exported_model,
    is_exported,
    naming_folder,
    read_exported,
    weight_files,
)
from mixerloop.interop.imported import imported_config
from mixerloop.kinds import PassDampingOptions
from mixerloop.model.checkpoint import load_model
from mixerloop.model.device import find_device
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.model.passes import Passes, PassPlace
from mixerloop.model.passes.pass_damping import PassDamping
from mixerloop.notation import notation, resolve
from mixerloop.ops.caller_modes import torch_defaults
from mixerloop.ops.gated_delta_rule import choose_form
from mixerloop.parsing import checked
from mixerloop.schedule import Schedule, repeated_unit
from mixerloop.subject import Subject


@dataclass(frozen=True)
class Loaded:
    """A model with its config and the fingerprint of its weights."""

    folder: Path
    """The folder of the weights and the tokenizer."""
    model: LoopedLM
    config: RunConfig
    fingerprint: str
    is_run: bool
    """Whether the folder belongs to a run, which can hold results."""
    imported: dict[str, Any] | None
    """The config.json of the folder of `transformers` that the model came from."""


def model_of(path: Path) -> ModelConfig:
    """Sizes and schedule of the model in a folder, without its weights."""
    if is_exported(path):
        return exported_model(path)
    return configs.load(runs.find_checkpoint(path) / runs.CONFIG).model


@checked
@torch_defaults()
def open_subject(
    run: Path | str,
    *,
    schedule: str | None = None,
    damping: float | None = None,
    compute_dtype: ComputeDtype = "float32",
    form: FormChoice = "auto",
    device: Device = "auto",
    results: Path | str | None = None,
    keep: bool = True,
    overwrite: bool = False,
) -> Subject:
    """Load a run, one of its checkpoints, or an exported folder, ready to be measured.

    With `damping` each pass but the first keeps that share of its change to the residual: for loops
    that the model was not trained with.

    Results are saved in `results`, or by default in the run's own results folder. Results of a run
    under another schedule or with damping, and of an exported folder, are saved in `results` only.
    Without `keep` the run's own results folder is not used, so that the run may be read-only. With
    `overwrite` results also replace files that this program did not write.
    """
    machine.keep_freed_memory()
    where = None if results is None else Path(results)
    if where is not None:
        check_can_hold(where)
    found_device = find_device(device, option="device")
    chosen = choose_form(form, found_device.type)
    path = Path(run)
    loaded = load_any(path, form=chosen, keep_narrow=compute_dtype == "bfloat16")
    is_own = schedule is None and damping is None
    if where is None and is_own and loaded.is_run and keep:
        where = runs.results_folder(path)
        check_can_hold(where)
    config = loaded.config.model
    occurrences = resolve(config.schedule if schedule is None else schedule, config.num_layers)
    if schedule is not None:
        loaded.model.check_rules(occurrences)
    model = loaded.model if damping is None else _damped(loaded.model, occurrences, damping)
    return Subject(
        folder=loaded.folder,
        fingerprint=loaded.fingerprint,
        results=where,
        model=model.to(found_device).eval(),
        config=loaded.config,
        schedule=occurrences,
        compute_dtype=compute_dtype,
        damping=damping,
        overwrite=overwrite,
    )


def _damped(model: LoopedLM, schedule: Schedule, share: float) -> LoopedLM:
    """The model with damped passes round what the schedule repeats."""
    unit = repeated_unit(schedule)
    if unit is None:
        raise ValueError(f"damping: the schedule {notation(schedule)} has no later pass to damp")
    try:
        options = PassDampingOptions(unit=unit, share=share)
    except ValueError as error:
        raise ValueError(f"damping: {error}") from None
    passes, place = Passes.round_unit(unit, schedule), PassPlace(model.final_norm)
    return model.with_rules(PassDamping(options, passes, place))


def load_any(path: Path, *, form: FormChoice = "auto", keep_narrow: bool = False) -> Loaded:
    """Load the model of a run, a checkpoint or an exported folder; no file is able to run code.

    `keep_narrow` is as in `mixerloop.model.checkpoint.load_model`.
    """
    if is_exported(path):
        model, config = read_exported(path, form=form, keep_narrow=keep_narrow)
        fingerprint, imported = fingerprint_of(path), exported_config(path)
        return Loaded(path, model, config, fingerprint, is_run=False, imported=imported)
    folder = runs.find_checkpoint(path)
    model, config = load_model(folder, form=form, keep_narrow=keep_narrow)
    fingerprint, imported = fingerprint_of(folder), imported_config(folder)
    return Loaded(folder, model, config, fingerprint, is_run=True, imported=imported)


def fingerprint_of(folder: Path) -> str:
    """The fingerprint of the weights in a checkpoint or an exported folder."""
    if not is_exported(folder):
        return file_sha256(folder / runs.CONTENTS)
    with naming_folder(folder):
        files = weight_files(folder)
    hashes = [file_sha256(file) for file in files]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
