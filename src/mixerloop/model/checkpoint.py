"""A model on disk: safetensors weights beside the resolved config, sealed with their hashes.

Nothing here can execute code: weights are raw numbers, the config is TOML, the seal is JSON.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.config import FormChoice, RunConfig
from mixerloop.files import (
    check_seal,
    is_there,
    json_text,
    new_folder,
    seal_folder,
    write_file,
    write_sealed,
)
from mixerloop.model.initialization import fill_constants, meta_model
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.provenance import collect_provenance

WEIGHTS = "model.safetensors"
DTYPE_NAMES = {
    **{torch.float32: "F32", torch.int64: "I64", torch.int32: "I32"},
    **{torch.uint8: "U8", torch.bool: "BOOL"},
}
"""The types of a checkpoint's tensors, as safetensors spells them."""
NARROW = ("BF16", "F16")
"""Types that imported weights may have in place of float32."""
NO_TOKENIZER: Mapping[str, bytes] = MappingProxyType({})


def save_model(folder: Path, model: LoopedLM, config: RunConfig) -> None:
    """Write weights and config into a folder that is being made; the caller seals it."""
    _save_weights(folder, model, config)
    write_file(folder / runs.CONFIG, configs.dump(config))


def _save_weights(folder: Path, model: LoopedLM, config: RunConfig) -> None:
    if not isinstance(model, LoopedLM) or model.config != config.model:
        raise ValueError("the model to save is not the one its config describes")
    save_tensors(folder / WEIGHTS, model.state_dict())


def save_run(
    path: Path,
    model: LoopedLM,
    config: RunConfig,
    *,
    tokenizer: Mapping[str, bytes] = NO_TOKENIZER,
    imported: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any],
) -> None:
    """Make a run that has weights and no training; `facts` go to its provenance.

    `tokenizer` has the files of the tokenizer by name; the run of a model without text has none.
    `imported` is the config of the folder the weights came from, for an export to be like it.
    """
    make_run(
        path,
        config,
        write_weights=lambda checkpoint: _save_weights(checkpoint, model, config),
        tokenizer=tokenizer,
        imported=imported,
        facts=facts,
    )


def make_run(
    path: Path,
    config: RunConfig,
    *,
    write_weights: Callable[[Path], None],
    tokenizer: Mapping[str, bytes] = NO_TOKENIZER,
    imported: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any],
) -> None:
    """Make a run whose weights a function writes into the folder of its checkpoint."""
    with new_folder(path) as folder:
        checkpoint = runs.checkpoint_folder(folder, step=0)
        checkpoint.mkdir(parents=True)
        write_weights(checkpoint)
        write_file(checkpoint / runs.CONFIG, configs.dump(config))
        for name, content in tokenizer.items():
            write_file(checkpoint / name, content)
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


def load_model(
    path: Path, *, form: FormChoice = "auto", keep_narrow: bool = False
) -> tuple[LoopedLM, RunConfig]:
    """The model of a checkpoint, or of a run's newest checkpoint, checked against its seal.

    With `keep_narrow` the matrices of imported weights in bfloat16 stay as they are in the file,
    which is mapped into memory: for computing in bfloat16 only.
    """
    folder = runs.find_checkpoint(path)
    check_seal(folder)
    config = configs.load(folder / runs.CONFIG)
    model = meta_model(config.model, form=form)
    load_weights(model, folder / WEIGHTS, keep_narrow=keep_narrow)
    return model, config


def load_weights(model: LoopedLM, path: Path, *, keep_narrow: bool = False) -> None:
    """Take every parameter and buffer from a file, or name each tensor that does not fit.

    The header is compared first, so that a model without memory yet is only given what fits it.
    Buffers that a checkpoint does not hold are set as in a fresh model.
    """
    wanted_tensors = model.state_dict()
    may_be_narrow = is_there(path.parent / runs.IMPORTED)
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
                    continue
                known = [DTYPE_NAMES.get(wanted_tensors[name].dtype)]
                known += NARROW if may_be_narrow and known == ["F32"] else ()
                if tensor.get_dtype() not in known:
                    problems.append(f"{name} is {tensor.get_dtype()}, not {known[0]}")
            if problems:
                raise ValueError(f"{path}: does not fit the model: {'; '.join(problems)}")
            tensors = {name: file.get_tensor(name) for name in wanted_tensors}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a readable safetensors file: {error}") from None
    assign_weights(model, tensors, keep_narrow=keep_narrow)


def assign_weights(
    model: LoopedLM, tensors: Mapping[str, Tensor], *, keep_narrow: bool = False
) -> None:
    """Make tensors the weights of a model without memory, in float32.

    With `keep_narrow` bfloat16 matrices of products and embeddings stay as they are.
    """
    matrices = {
        f"{path}.weight"
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Embedding)
    }
    model.load_state_dict(
        {
            name: tensor
            if keep_narrow and name in matrices and tensor.dtype == torch.bfloat16
            else tensor.to(torch.promote_types(tensor.dtype, torch.float32))
            if tensor.is_floating_point()
            else tensor
            for name, tensor in tensors.items()
        },
        assign=True,
    )
    fill_constants(model)
