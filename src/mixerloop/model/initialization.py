"""Fresh weights.

Every parameter is drawn from its own generator, seeded by the run's seed and the parameter's name.
One seed gives bit-identical weights whatever the schedule, and a new parameter moves no other.
"""

import hashlib
import math
from typing import Literal, get_args

import torch
from torch import Tensor

from mixerloop.config import ModelConfig
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.ops.gated_delta_rule import ImplementationChoice
from mixerloop.schedule import num_passes_of

InitRule = Literal["shared", "released"]
"""`shared`: one draw for every schedule. `released`: the output projection shrinks with depth."""

WEIGHT_STD = 0.02
A_RANGE = (0.0, 16.0)
DT_RANGE = (0.001, 0.1)
DT_FLOOR = 1e-4
SMALLEST_A = 2.0**-20  # a drawn zero would make A_log -inf; one step of the generator above it


def fresh_model(
    config: ModelConfig,
    *,
    seed: int,
    rule: InitRule = "shared",
    implementation: ImplementationChoice = "auto",
) -> LoopedLM:
    """A float32 model on the CPU with weights drawn under `seed`."""
    model = empty_model(config, implementation=implementation)
    initialize(model, seed=seed, rule=rule)
    return model


def empty_model(config: ModelConfig, *, implementation: ImplementationChoice = "auto") -> LoopedLM:
    """A model whose weights are allocated but not set."""
    return meta_model(config, implementation=implementation).to_empty(device="cpu")


def meta_model(config: ModelConfig, *, implementation: ImplementationChoice = "auto") -> LoopedLM:
    """A model with shapes and no memory, for counting."""
    with torch.device("meta"):
        return LoopedLM(config, implementation=implementation)


@torch.no_grad()
def initialize(model: LoopedLM, *, seed: int, rule: InitRule = "shared") -> None:
    """Set every weight."""
    if rule not in get_args(InitRule):
        raise ValueError(f"unknown init rule '{rule}'; known: {', '.join(get_args(InitRule))}")
    depth = 2 * model.config.num_layers * num_passes_of(model.schedule)
    output_std = WEIGHT_STD / math.sqrt(depth) if rule == "released" else WEIGHT_STD
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(_seed_of(seed, name))
        std = output_std if name.endswith("mixer.output_proj.weight") else WEIGHT_STD
        parameter.copy_(_draw(name, parameter.shape, std, generator))


def _draw(name: str, shape: torch.Size, std: float, generator: torch.Generator) -> Tensor:
    """Values in float32; in bfloat16 a decay rate of zero would come up and kill its head."""
    match name.rsplit(".", 2)[-2:]:
        case [*_, "pass_residual"]:
            return torch.zeros(shape)
        case [module, "weight"] if module.endswith("norm"):
            return torch.ones(shape)
        case [*_, "A_log"]:
            return (
                torch.empty(shape).uniform_(*A_RANGE, generator=generator).clamp_(SMALLEST_A).log()
            )
        case [*_, "dt_bias"]:
            low, high = (math.log(bound) for bound in DT_RANGE)
            dt = torch.empty(shape).uniform_(low, high, generator=generator).exp_().clamp_(DT_FLOOR)
            return dt + torch.log(-torch.expm1(-dt))  # softplus of this is dt
        case _:
            return torch.empty(shape).normal_(0.0, std, generator=generator)


def _seed_of(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1
