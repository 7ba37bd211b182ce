"""What a schedule costs: parameters, multiply-adds, states and activations.

Every figure is read off real modules: weights are counted in the model itself, states are the ones
decoding would start from, and activations are the ones autograd keeps for a layer that really runs.
"""

from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mixerloop.config import ModelConfig
from mixerloop.model.initialization import fresh_model, meta_model
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.model.sublayer import Cost
from mixerloop.notation import notation
from mixerloop.schedule import DEFAULT_NUM_PASSES, Schedule, Sublayer, full_loop

PROBE_TOKENS = 128


@dataclass(frozen=True, kw_only=True)
class ModelAccount:
    """What every schedule of a model shares."""

    parameters: int
    ffn_share: float
    """The ffn's part of a layer's projection multiply-adds."""
    head_macs_per_token: int
    mixer: Cost
    ffn: Cost
    activation_bytes_per_token: dict[Sublayer, int]
    """What autograd keeps for one occurrence of a sublayer, in float32 and the torch form."""

    def projection_macs(self) -> dict[Sublayer, int]:
        """Multiply-adds with weights in one occurrence, per token."""
        return {"mixer": self.mixer.projection_macs, "ffn": self.ffn.projection_macs}


@dataclass(frozen=True, kw_only=True)
class ScheduleAccount:
    """What one schedule costs."""

    notation: str
    mixer_applications: int
    """Executions of a mixer in one forward, over all layers."""
    ffn_applications: int
    projection_macs_per_token: int
    """Multiply-adds with weights, the head included."""
    backbone_ratio_to_full_loop: float
    """Projection multiply-adds without the head, over those of the full loop."""
    saving_to_full_loop: float
    """The part of the full loop's projection multiply-adds, head included, that is not spent."""
    recurrence_macs_per_token: int
    """Multiply-adds of the mixers' recurrence, the delta rule, by its definition."""
    state_bytes_per_sequence: int
    """What decoding keeps of a sequence, whatever its length."""
    activation_bytes_per_token: int
    """What autograd keeps for the backward, without the head."""


def account_model(config: ModelConfig) -> ModelAccount:
    """Count a model."""
    model = meta_model(config)
    layer = model.layers[0]
    mixer, ffn = layer.mixer.cost(), layer.ffn.cost()
    return ModelAccount(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        ffn_share=ffn.projection_macs / (mixer.projection_macs + ffn.projection_macs),
        head_macs_per_token=model.embedding.weight.numel(),
        mixer=mixer,
        ffn=ffn,
        activation_bytes_per_token=_activation_bytes_per_token(config),
    )


def account_schedule(
    model: ModelAccount,
    schedule: Schedule,
    *,
    num_layers: int,
    num_passes: int = DEFAULT_NUM_PASSES,
) -> ScheduleAccount:
    """Count a schedule, beside the full loop of the same stack with `num_passes` passes."""
    counts = Counter(occurrence.sublayer for occurrence in schedule)
    num_mixer, num_ffn = counts["mixer"], counts["ffn"]
    backbone = _backbone_macs(model, schedule)
    full_backbone = _backbone_macs(model, full_loop(num_layers, num_passes))
    head = model.head_macs_per_token
    activation = model.activation_bytes_per_token
    return ScheduleAccount(
        notation=notation(schedule),
        mixer_applications=num_mixer,
        ffn_applications=num_ffn,
        projection_macs_per_token=backbone + head,
        backbone_ratio_to_full_loop=backbone / full_backbone,
        saving_to_full_loop=1 - (backbone + head) / (full_backbone + head),
        recurrence_macs_per_token=num_mixer * model.mixer.recurrence_macs,
        state_bytes_per_sequence=num_mixer * model.mixer.state_bytes,
        activation_bytes_per_token=num_mixer * activation["mixer"] + num_ffn * activation["ffn"],
    )


def training_flops_per_token(model: LoopedLM) -> int:
    """Forward and backward of projections, recurrence and head; recomputing is not counted.

    A multiply-add is two operations, and the backward of a product is two products.
    """
    cost = {"mixer": model.layers[0].mixer.cost(), "ffn": model.layers[0].ffn.cost()}
    ran = [cost[occurrence.sublayer] for occurrence in model.schedule]
    head = model.config.vocab_size * model.config.d_model
    return 6 * (head + sum(cost.projection_macs + cost.recurrence_macs for cost in ran))


def _backbone_macs(model: ModelAccount, schedule: Schedule) -> int:
    cost = model.projection_macs()
    return sum(cost[occurrence.sublayer] for occurrence in schedule)


def _activation_bytes_per_token(config: ModelConfig) -> dict[Sublayer, int]:
    """Run each sublayer of one layer and weigh the distinct tensors autograd keeps."""
    single = replace(config, num_layers=1, vocab_size=1, schedule="no_loop", pass_residual="none")
    model = fresh_model(single, seed=0, form="torch")
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    weighed: dict[Sublayer, int] = {}
    for occurrence in model.schedule:
        kept: dict[int, Tensor] = {}

        def keep(tensor: Tensor, kept: dict[int, Tensor] = kept) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        residual = torch.randn(1, PROBE_TOKENS, config.d_model, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            update, _ = model.walk(residual, (occurrence,))
        num_bytes = sum(
            tensor.untyped_storage().nbytes() for at, tensor in kept.items() if at not in weights
        )
        weighed[occurrence.sublayer] = round(num_bytes / PROBE_TOKENS)
        del update
    return weighed
