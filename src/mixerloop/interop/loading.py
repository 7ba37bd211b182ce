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
from mixerloop.files import check_can_hold, file_sha256, is_there, read_json
from mixerloop.interop.folders import (
    exported_config,
    exported_model,
    is_exported,
    read_exported,
    weight_files,
)
from mixerloop.model.checkpoint import load_model
from mixerloop.model.device import find_device
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.notation import resolve
from mixerloop.ops.gated_delta_rule import choose_form
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


def open_subject(
    run: Path | str,
    *,
    schedule: str | None = None,
    compute_dtype: ComputeDtype = "float32",
    form: FormChoice = "auto",
    device: Device = "auto",
    results: Path | str | None = None,
    keep: bool = True,
    overwrite: bool = False,
) -> Subject:
    """Load a run, one of its checkpoints, or an exported folder, ready to be measured.

    Results are saved in `results`, or by default in the run's own results folder. Results of a run
    under another schedule, and of an exported folder, are saved in `results` only. Without `keep`
    the run's own results folder is not used, so that the run may be read-only. With `overwrite`
    results also replace files that this program did not write.
    """
    machine.keep_freed_memory()
    where = None if results is None else Path(results)
    if where is not None:
        check_can_hold(where)
    found_device = find_device(device, option="device")
    chosen = choose_form(form, found_device.type)
    path = Path(run)
    loaded = load_any(path, form=chosen)
    if where is None and schedule is None and loaded.is_run and keep:
        where = runs.results_folder(path)
        check_can_hold(where)
    model = loaded.config.model
    return Subject(
        folder=loaded.folder,
        fingerprint=loaded.fingerprint,
        results=where,
        model=loaded.model.to(found_device).eval(),
        config=loaded.config,
        schedule=resolve(model.schedule if schedule is None else schedule, model.num_layers),
        compute_dtype=compute_dtype,
        overwrite=overwrite,
    )


def load_any(path: Path, *, form: FormChoice = "auto") -> Loaded:
    """Load the model of a run, a checkpoint or an exported folder; no file is able to run code."""
    if is_exported(path):
        model, config = read_exported(path, form=form)
        hashes = [file_sha256(file) for file in weight_files(path)]
        whole = hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode())
        fingerprint = whole if isinstance(whole, str) else whole.hexdigest()
        imported = exported_config(path)
        return Loaded(path, model, config, fingerprint, is_run=False, imported=imported)
    folder = runs.find_checkpoint(path)
    model, config = load_model(folder, form=form)
    imported_file = folder / runs.IMPORTED
    imported = read_json(imported_file) if is_there(imported_file) else None
    fingerprint = file_sha256(folder / runs.CONTENTS)
    return Loaded(folder, model, config, fingerprint, is_run=True, imported=imported)
