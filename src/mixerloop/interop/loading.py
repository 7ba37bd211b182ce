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
from mixerloop.files import check_can_hold, file_sha256, read_json
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
    """A model, and what says which one it is."""

    folder: Path
    """Where its weights and its tokenizer are."""
    model: LoopedLM
    config: RunConfig
    fingerprint: str
    is_run: bool
    """Whether results can be kept beside it."""
    imported: dict[str, Any] | None
    """The config.json of the folder of `transformers` that it is, or came from."""


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
) -> Subject:
    """Load a run, one of its checkpoints, or an exported folder, ready to be measured.

    Results are kept in `results`, or in the run's own results folder. A run under another schedule
    than its own, and an exported folder, keep results in `results` only. Without `keep` a run keeps
    none either, so that its folder may be one that cannot be written.
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
    )


def load_any(path: Path, *, form: FormChoice = "auto") -> Loaded:
    """Load a model; nothing that is loaded can run code."""
    if is_exported(path):
        model, config = read_exported(path, form=form)
        hashes = [file_sha256(file) for file in weight_files(path)]
        whole = hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode())
        fingerprint = whole if isinstance(whole, str) else whole.hexdigest()
        given = exported_config(path)
        return Loaded(path, model, config, fingerprint, is_run=False, imported=given)
    folder = runs.find_checkpoint(path)
    model, config = load_model(folder, form=form)
    kept = folder / runs.IMPORTED
    imported = read_json(kept) if kept.is_file() else None
    fingerprint = file_sha256(folder / runs.CONTENTS)
    return Loaded(folder, model, config, fingerprint, is_run=True, imported=imported)
