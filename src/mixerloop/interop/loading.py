"""A model from wherever one is: a run, a checkpoint, a folder of `transformers`."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.config import ImplementationChoice, ModelConfig, RunConfig
from mixerloop.interop.folders import (
    exported_config,
    exported_model,
    is_exported,
    read_exported,
    weight_files,
)
from mixerloop.model.checkpoint import load_model
from mixerloop.model.looped_lm import LoopedLM


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


def load_any(path: Path, *, implementation: ImplementationChoice = "auto") -> Loaded:
    """Load a model; nothing that is loaded can run code."""
    if is_exported(path):
        model, config = read_exported(path, implementation=implementation)
        hashes = [runs.sha256(file) for file in weight_files(path)]
        whole = hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode())
        fingerprint = whole if isinstance(whole, str) else whole.hexdigest()
        given = exported_config(path)
        return Loaded(path, model, config, fingerprint, is_run=False, imported=given)
    folder = runs.find_checkpoint(path)
    model, config = load_model(folder, implementation=implementation)
    kept = folder / runs.IMPORTED
    imported = runs.read_json(kept) if kept.is_file() else None
    fingerprint = runs.sha256(folder / runs.CONTENTS)
    return Loaded(folder, model, config, fingerprint, is_run=True, imported=imported)
