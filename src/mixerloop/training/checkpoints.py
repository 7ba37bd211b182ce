"""Checkpoints on disk: weights, optimizer state, and the step that fixes everything else.

    step-N/model.safetensors    all weights, for any number of ranks
    step-N/optimizer/           AdamW's two moments of each weight that has had a gradient, by name
    step-N/position.json        step, seconds, budget
    step-N/parent.json          the parent of a run that began with a parent's weights
    step-N/metrics.jsonl        the history of the run until this step; timing.jsonl too

The order of data and all random numbers are functions of seed and step, so a checkpoint stores only
the step for both. Under FSDP each rank writes its own part of the optimizer's state, as a PyTorch
distributed checkpoint in safetensors. Any number of ranks can read the parts.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save as save_parts
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.config import RunConfig
from mixerloop.files import new_folder, remove_folder, seal_folder, write_file
from mixerloop.history import copy_history
from mixerloop.model.checkpoint import WEIGHTS, save_tensors
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.parent_record import ParentRecord, read_parent, write_parent
from mixerloop.training.parallel import Ranks, whole
from mixerloop.training.position import Position, read_position, write_position

BYTES_PER_PARAMETER = 12  # of a checkpoint: each weight and its two moments in float32
OPTIMIZER = "optimizer"
MOMENTS = ("exp_avg", "exp_avg_sq")
STEPS = "step"


def save(
    run: Path,
    model: LoopedLM,
    optimizer: Optimizer | None,
    position: Position,
    *,
    config: RunConfig,
    files: Mapping[str, bytes],
    parent: ParentRecord | None,
    ranks: Ranks,
) -> Path:
    """Write a checkpoint; every rank calls this.

    `files` go beside the weights, by name: those of the tokenizer and of an import.
    The first rank gives the folder its final name when all files are complete.
    """
    weights = {name: whole(tensor.detach()) for name, tensor in model.state_dict().items()}
    moments = {} if optimizer is None else optimizer_tensors(model, optimizer, position.step)
    folder = runs.checkpoint_folder(run, position.step)
    if not ranks.is_first:
        _save_parts(moments, Path(ranks.from_first("")))
        ranks.wait()
        return folder
    with new_folder(folder) as new:
        (new / OPTIMIZER).mkdir()
        ranks.from_first(str(new))
        _save_parts(moments, new)
        if moments and not _in_parts(moments):
            save_tensors(new / OPTIMIZER / "optimizer.safetensors", moments)
        save_tensors(new / WEIGHTS, weights)
        write_file(new / runs.CONFIG, configs.dump(config))
        write_position(new, position)
        for name, content in files.items():
            write_file(new / name, content)
        if parent is not None:
            write_parent(new, parent)
        copy_history(run, new)
        seal_folder(new)
    ranks.wait()
    return folder


def restore(
    folder: Path, model: LoopedLM, optimizer: Optimizer, *, late: Collection[str] = ()
) -> Position:
    """Load the optimizer's state and return the position; the model has its weights already.

    The weights in `late` may have had no gradient yet.
    """
    position = read_position(folder)
    if position.step == 0:
        return position
    reader = HuggingFaceStorageReader(str(folder / OPTIMIZER))
    with warnings.catch_warnings(), _named(folder / OPTIMIZER, "cannot be read"):
        # one process may read the parts that several ranks have written
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        stored = reader.read_metadata().state_dict_metadata.keys()
        may_lack = _may_lack_moments(model) | set(late)
        for name, parameter in model.named_parameters():
            has_moments = any(f"{moment}.{name}" in stored for moment in MOMENTS)
            if not has_moments and parameter.requires_grad and name not in may_lack:
                raise KeyError(f"no moments of {name}")
            if has_moments:
                # load() reads a stored count: that of a weight whose first gradient came late
                steps = -1.0 if f"{STEPS}.{name}" in stored else float(position.step)
                optimizer.state[parameter] = {
                    STEPS: torch.tensor(steps, device=parameter.device),
                    **{moment: torch.zeros_like(parameter) for moment in MOMENTS},
                }
        load(optimizer_tensors(model, optimizer, position.step), storage_reader=reader)
    return position


def _may_lack_moments(model: LoopedLM) -> set[str]:
    """The weights of sublayers that may skip them, which may have had no gradient yet."""
    return {
        name
        for name, _ in model.named_parameters()
        for number, layer in enumerate(model.layers)
        for part, sublayer in (("mixer", layer.mixer), ("ffn", layer.ffn))
        if sublayer.may_skip_weights and name.startswith(f"layers.{number}.{part}.")
    }


def optimizer_tensors(model: LoopedLM, optimizer: Optimizer, step: int) -> dict[str, Tensor]:
    """The optimizer's state under the names of the weights.

    The state of a weight is two running means, once the weight has had a gradient. The number of
    its updates is included where it differs from the run's number of steps.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter in optimizer.state:
            state = optimizer.state[parameter]
            tensors |= {f"{moment}.{name}": state[moment] for moment in MOMENTS}
            if float(state[STEPS]) != step:
                tensors[f"{STEPS}.{name}"] = state[STEPS]
    return tensors


def prune(run: Path, *, keep_last: int, keep_every: int | None) -> None:
    """Remove all checkpoints but the newest `keep_last` and those at multiples of `keep_every`.

    The first checkpoint of a run with a parent stays: no seed can draw its weights again.
    """
    steps = sorted(runs.checkpoints(run))
    for step in steps[:-keep_last]:
        folder = runs.checkpoint_folder(run, step)
        is_initial = step == 0 and read_parent(folder) is not None
        if not is_initial and (keep_every is None or step % keep_every):
            remove_folder(folder)


def _in_parts(moments: dict[str, Tensor]) -> bool:
    return any(isinstance(tensor, DTensor) for tensor in moments.values())


def _save_parts(moments: dict[str, Tensor], folder: Path) -> None:
    """Write this rank's shards of the moments; does nothing where they are not sharded."""
    if _in_parts(moments):
        writer = HuggingFaceStorageWriter(str(folder / OPTIMIZER), save_distributed=True)
        with _named(folder / OPTIMIZER, "cannot be written"):
            save_parts(moments, storage_writer=writer)


@contextmanager
def _named(folder: Path, problem: str) -> Iterator[None]:
    """Turn errors of the block into a ValueError with the folder and the first failed rank."""
    try:
        yield
    except CheckpointException as error:
        rank, (reason, _) = next(iter(error.failures.items()))
        raise ValueError(f"{folder}: {problem} (rank {rank}): {reason}") from None
    except (RuntimeError, KeyError) as error:
        raise ValueError(f"{folder}: {problem}: {error}") from None
