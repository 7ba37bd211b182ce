"""A model on disk: safetensors weights beside the resolved config, sealed with their hashes.

Nothing here can execute code: weights are raw numbers, the config is TOML, the seal is JSON.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.config import FormChoice, RunConfig
from mixerloop.files import check_seal, json_text, new_folder, seal_folder, write_file, write_sealed
from mixerloop.model.initialization import fill_constants, meta_model
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.provenance import collect_provenance

WEIGHTS = "model.safetensors"
DTYPE_NAMES = {
    **{torch.float32: "F32", torch.int64: "I64", torch.int32: "I32"},
    **{torch.uint8: "U8", torch.bool: "BOOL"},
}
"""The types of a checkpoint's tensors, as safetensors spells them."""


def save_model(folder: Path, model: LoopedLM, config: RunConfig) -> None:
    """Write weights and config into a folder that is being made; the caller seals it."""
    if not isinstance(model, LoopedLM) or model.config != config.model:
        raise ValueError("the model to save is not the one its config describes")
    save_tensors(folder / WEIGHTS, model.state_dict())
    write_file(folder / runs.CONFIG, configs.dump(config))


def save_run(
    path: Path,
    model: LoopedLM,
    config: RunConfig,
    *,
    tokenizer: Path | None = None,
    imported: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any],
) -> None:
    """Make a run that has weights and no training; `facts` go to its provenance.

    `imported` is the config of the folder the weights came from, for an export to be like it.
    """
    with new_folder(path) as folder:
        checkpoint = runs.checkpoint_folder(folder, step=0)
        checkpoint.mkdir(parents=True)
        save_model(checkpoint, model, config)
        if tokenizer is not None:
            write_file(checkpoint / runs.TOKENIZER, tokenizer.read_bytes())
        if imported is not None:
            write_file(checkpoint / runs.IMPORTED, json_text(imported))
        seal_folder(checkpoint)
        write_file(folder / runs.CONFIG, configs.dump(config))
        write_sealed(folder / runs.PROVENANCE, collect_provenance(**facts))


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors into a folder that is being made; numbers with a point must be float32."""
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPE_NAMES:
            raise ValueError(f"{name} is {tensor.dtype}; checkpoints hold float32 and integers")
    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(whole, path, metadata={"format": "pt"})
    except SafetensorError as error:  # its own kind even for a full disk
        raise ValueError(f"{path}: cannot be written: {error}") from None


def load_model(path: Path, *, form: FormChoice = "auto") -> tuple[LoopedLM, RunConfig]:
    """The model of a checkpoint, or of a run's newest checkpoint, checked against its seal."""
    folder = runs.find_checkpoint(path)
    check_seal(folder)
    config = configs.load(folder / runs.CONFIG)
    model = meta_model(config.model, form=form)
    load_weights(model, folder / WEIGHTS)
    return model, config


def load_weights(model: LoopedLM, path: Path) -> None:
    """Take every parameter and buffer from a file, or name each tensor that does not fit.

    The header is compared first, so that a model without memory yet is only given what fits it.
    Buffers that a checkpoint does not hold are set as in a fresh model.
    """
    wanted_tensors = model.state_dict()
    try:
        with safe_open(path, framework="pt") as file:
            found = set(file.keys())
            slices = {name: file.get_slice(name) for name in found & wanted_tensors.keys()}
            problems = [
                *(f"missing {name}" for name in sorted(wanted_tensors.keys() - found)),
                *(f"unexpected {name}" for name in sorted(found - wanted_tensors.keys())),
            ]
            for name, tensor in sorted(slices.items()):
                wanted, got = list(wanted_tensors[name].shape), list(tensor.get_shape())
                if got != wanted:
                    problems.append(f"{name} has the shape {got}, not {wanted}")
                elif tensor.get_dtype() != (dtype := DTYPE_NAMES.get(wanted_tensors[name].dtype)):
                    problems.append(f"{name} is {tensor.get_dtype()}, not {dtype}")
            if problems:
                raise ValueError(f"{path}: does not fit the model: {'; '.join(problems)}")
            tensors = {name: file.get_tensor(name) for name in wanted_tensors}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a readable safetensors file: {error}") from None
    model.load_state_dict(tensors, assign=True)
    fill_constants(model)
