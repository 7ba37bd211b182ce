"""Fresh weights.

Every parameter is drawn from its own stream, named by the run's seed and the parameter's path.
One seed gives bit-identical weights on every CPU, whatever the schedule, and a new parameter moves
no other. Each value comes from the module that owns the tensor; a tensor without an initial value
is an error.
"""

import math

import numpy as np
import torch
from torch import Tensor, nn

from mixerloop.config import FormChoice, InitRule, ModelConfig, check_seed
from mixerloop.draws import Draws
from mixerloop.model.grouped_linear import GroupedLinear
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.model.memory import check_fits_memory, sizes_text
from mixerloop.model.sublayer import WEIGHT_STD
from mixerloop.parsing import checked, one_of
from mixerloop.schedule import BLOCK, Schedule, Sublayer, num_passes_of

MATRICES = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, GroupedLinear)
NORMS = (nn.RMSNorm, nn.LayerNorm, nn.GroupNorm)
"""Layers whose initial values are known: a normal draw or ones, and zero biases."""


@checked
def fresh_model(
    config: ModelConfig,
    *,
    seed: int,
    rule: InitRule = "shared",
    form: FormChoice = "auto",
) -> LoopedLM:
    """A float32 model on the CPU with weights drawn under `seed`."""
    model = meta_model(config, form=form)
    check_fits_memory(model)
    model = model.to_empty(device="cpu")
    initialize(model, seed=seed, rule=rule)
    return model


def meta_model(config: ModelConfig, *, form: FormChoice = "auto") -> LoopedLM:
    """A model with shapes and no memory: for counting, and to be filled."""
    with torch.device("meta"), torch.random.fork_rng(()):  # torch's own modules draw, also here
        try:
            return LoopedLM(config, form=form)
        except RuntimeError as error:
            if "overflow" not in str(error):
                raise
    raise ValueError(f"{sizes_text(config)}: a tensor would have more bytes than can be counted")


@torch.no_grad()
def initialize(model: LoopedLM, *, seed: int, rule: InitRule = "shared") -> None:
    """Set every parameter and buffer."""
    one_of(InitRule, rule, "init rule")
    check_seed(seed)
    depth = 2 * model.config.num_layers * num_passes_of(model.schedule)
    shrinking = _shrinking(model) if rule == "released" else None
    for path, module in model.named_modules():
        shrinks = shrinking is not None and path.endswith(shrinking)
        std = WEIGHT_STD / math.sqrt(depth) if shrinks else WEIGHT_STD
        tensors = (
            *module.named_parameters(recurse=False),
            *((name, buffer) for name, buffer in module.named_buffers(recurse=False)),
        )
        for name, tensor in tensors:
            if name in module._non_persistent_buffers_set:
                continue
            draws = Draws("weights", seed, f"{path}.{name}")
            _fill(tensor, _initial_value(module, path, name, tensor, std, draws))
    fill_constants(model)


@torch.no_grad()
def fill_constants(model: nn.Module) -> None:
    """Set the buffers that a checkpoint does not hold, which depend on no seed."""
    for path, module in model.named_modules():
        for name in sorted(module._non_persistent_buffers_set):
            buffer = module.get_buffer(name)
            draws = Draws("constants", f"{path}.{name}")
            value = _initial_value(module, path, name, buffer, WEIGHT_STD, draws)
            if buffer.is_meta:
                buffer = torch.empty_like(buffer, device="cpu")
                setattr(module, name, buffer)
            _fill(buffer, value)


def _fill(tensor: Tensor, value: np.ndarray) -> None:
    dtype = np.float32 if tensor.is_floating_point() else value.dtype
    tensor.copy_(torch.from_numpy(np.ascontiguousarray(value, dtype=dtype)))


def _shrinking(model: LoopedLM) -> str | None:
    """The projections that the authors' code draws smaller: the last ones of the repeated sublayer.

    Where the mixer is repeated, alone or with the ffn, its output projection; where only the ffn
    is, the ffn's. Without a loop nothing is drawn smaller.
    """
    sublayer = _repeated_sublayer(model.schedule)
    if sublayer is None:
        return None
    name = {"mixer": "output_proj", "ffn": "down_proj"}[sublayer]
    for layer, kinds in zip(model.layers, model.config.layer_kinds(), strict=True):
        if not hasattr(getattr(layer, sublayer), name):
            kind = dict(zip(BLOCK, kinds, strict=True))[sublayer]
            raise ValueError(f"init = 'released' shrinks {name}, and a {kind} has none")
    return f".{sublayer}.{name}"


def _repeated_sublayer(schedule: Schedule) -> Sublayer | None:
    repeated = {occurrence.sublayer for occurrence in schedule if occurrence.pass_index > 0}
    return "mixer" if "mixer" in repeated else "ffn" if repeated else None


def _initial_value(
    module: nn.Module, path: str, name: str, tensor: Tensor, std: float, draws: Draws
) -> np.ndarray:
    draw = getattr(module, "draw", None)
    value = None if draw is None else draw(name, draws)
    if value is not None:
        if value.shape != tuple(tensor.shape):
            raise ValueError(
                f"{path}.{name}: its initial value has the shape {value.shape}, not "
                f"{tuple(tensor.shape)}"
            )
        return value
    if isinstance(module, MATRICES) and name == "weight":
        return std * draws.normals(tensor.numel()).reshape(tensor.shape)
    if isinstance(module, NORMS) and name == "weight":
        return np.ones(tensor.shape)
    if isinstance(module, (*MATRICES, *NORMS)) and name == "bias":
        return np.zeros(tensor.shape)
    raise ValueError(
        f"{path}.{name} has no initial value; give {type(module).__name__} a method draw(name, "
        "draws) that returns the value"
    )
