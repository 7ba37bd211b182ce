"""Fresh weights.

Every parameter is drawn from its own stream, named by the run's seed and the parameter's path.
One seed gives bit-identical weights on every CPU, whatever the schedule, and a new parameter moves
no other.
"""

import math

import numpy as np
import torch

from mixerloop.config import FormChoice, InitRule, ModelConfig, check_seed
from mixerloop.draws import Draws
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.model.norm import RMSNorm
from mixerloop.model.passes.pass_residual import PassResidualTable
from mixerloop.parsing import one_of
from mixerloop.schedule import Schedule, num_passes_of

WEIGHT_STD = 0.02


def fresh_model(
    config: ModelConfig,
    *,
    seed: int,
    rule: InitRule = "shared",
    form: FormChoice = "auto",
) -> LoopedLM:
    """A float32 model on the CPU with weights drawn under `seed`."""
    model = meta_model(config, form=form).to_empty(device="cpu")
    initialize(model, seed=seed, rule=rule)
    return model


def meta_model(config: ModelConfig, *, form: FormChoice = "auto") -> LoopedLM:
    """A model with shapes and no memory: for counting, and to be filled."""
    with torch.device("meta"):
        return LoopedLM(config, form=form)


@torch.no_grad()
def initialize(model: LoopedLM, *, seed: int, rule: InitRule = "shared") -> None:
    """Set every weight."""
    one_of(InitRule, rule, "init rule")
    check_seed(seed)
    depth = 2 * model.config.num_layers * num_passes_of(model.schedule)
    shrinking = _shrinking(model.schedule) if rule == "released" else None
    for path, module in model.named_modules():
        shrinks = shrinking is not None and path.endswith(shrinking)
        std = WEIGHT_STD / math.sqrt(depth) if shrinks else WEIGHT_STD
        for name, parameter in module.named_parameters(recurse=False):
            draws = Draws("weights", seed, f"{path}.{name}")
            values = _draw(module, name, parameter.shape, std, draws).astype(np.float32)
            parameter.copy_(torch.from_numpy(values))


def _shrinking(schedule: Schedule) -> str | None:
    """The projections that the authors' code draws smaller: those that write what is repeated.

    Where the mixer is repeated, alone or with the ffn, its output projection; where only the ffn
    is, the ffn's. Without a loop nothing is drawn smaller.
    """
    repeated = {occurrence.sublayer for occurrence in schedule if occurrence.pass_index > 0}
    if "mixer" in repeated:
        return ".mixer.output_proj"
    return ".ffn.down_proj" if repeated else None


def _draw(
    module: torch.nn.Module, name: str, shape: torch.Size, std: float, draws: Draws
) -> np.ndarray:
    if isinstance(module, RMSNorm):
        return np.ones(shape)
    if isinstance(module, PassResidualTable):
        return np.zeros(shape)
    draw = getattr(module, "draw", None)
    drawn = None if draw is None else draw(name, draws)
    return std * draws.normals(shape.numel()).reshape(shape) if drawn is None else drawn
