"""What a schedule costs: parameters, multiply-adds, states and activations.

Every figure is read off real modules: weights are counted in the model itself, states are the ones
decoding would start from, and activations are the ones autograd keeps for a layer that really runs.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mixerloop.config import ModelConfig
from mixerloop.kinds import LARGEST_SIZE
from mixerloop.model.initialization import fresh_model, meta_model
from mixerloop.model.lens import Address
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.model.passes import Passes
from mixerloop.model.sublayer import Cost, SublayerModule, has_state
from mixerloop.notation import notation
from mixerloop.schedule import (
    BLOCK,
    DEFAULT_NUM_PASSES,
    Schedule,
    Sublayer,
    full_loop,
)

PROBE_TOKENS = 128
CONTEXT = 1024  # paper, "Training Settings"
LONGEST = LARGEST_SIZE  # tokens; the longest window that a mixer can have


@dataclass(frozen=True, kw_only=True)
class LayerAccount:
    """What one occurrence of each sublayer of a layer costs."""

    mixer: Cost
    ffn: Cost
    activation_bytes_per_token: dict[Sublayer, int]
    """What autograd keeps for one occurrence of a sublayer, in float32 and the torch form."""

    def cost(self, sublayer: Sublayer) -> Cost:
        """The cost of one occurrence."""
        return self.mixer if sublayer == "mixer" else self.ffn


@dataclass(frozen=True, kw_only=True)
class PassAccount:
    """What a pass rule costs."""

    passes: Passes
    macs: int
    """Multiply-adds with weights around one pass, per token."""


@dataclass(frozen=True, kw_only=True)
class ModelAccount:
    """What every schedule of a model shares; mixer and ffn are means where layers differ."""

    parameters: int
    ffn_share: float
    """The ffn's part of a layer's projection multiply-adds."""
    head_macs_per_token: int
    mixer: Cost
    ffn: Cost
    activation_bytes_per_token: dict[Sublayer, int]
    """What autograd keeps for one occurrence of a sublayer, in float32 and the torch form."""
    by_layer: tuple[LayerAccount, ...] = ()
    """Each layer, where the layers are of different kinds."""
    between_passes: tuple[PassAccount, ...] = ()
    """Each pass rule that multiplies with weights."""

    def projection_macs(self) -> dict[Sublayer, int]:
        """Multiply-adds with weights in one occurrence, per token."""
        return {"mixer": self.mixer.projection_macs, "ffn": self.ffn.projection_macs}

    def layer(self, number: int) -> LayerAccount:
        """The account of a layer."""
        if self.by_layer:
            return self.by_layer[number]
        return LayerAccount(
            mixer=self.mixer,
            ffn=self.ffn,
            activation_bytes_per_token=self.activation_bytes_per_token,
        )

    def backbone_macs(self, schedule: Schedule) -> int:
        """Multiply-adds with weights of a schedule, per token, without the head."""
        of_rules = sum(rule.macs * rule.passes.number_in(schedule) for rule in self.between_passes)
        return of_rules + sum(cost.projection_macs for cost in self.costs(schedule))

    def costs(self, schedule: Schedule) -> list[Cost]:
        """The cost of each occurrence."""
        return [self.layer(one.layer).cost(one.sublayer) for one in schedule]

    def activation_bytes(self, schedule: Schedule) -> int:
        """What autograd keeps of a token for the backward, without the head."""
        return sum(
            self.layer(one.layer).activation_bytes_per_token[one.sublayer] for one in schedule
        )


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
    """What decoding keeps of a sequence."""
    activation_bytes_per_token: int
    """What autograd keeps for the backward, without the head."""


@dataclass(frozen=True, kw_only=True)
class StateAccount:
    """What one occurrence of a kind keeps of a sequence while decoding, in float32."""

    kind: str
    layers: int
    """Layers of this kind."""
    state_bytes: int
    """After the tokens that the account is of."""
    first_token_bytes: int
    """What the first token adds; 0 if the state has a constant size."""
    stops_at: int | None
    """Tokens from which on the state stops growing: 0 for a constant size, None for no end."""

    @property
    def grows(self) -> bool:
        """Whether the size of the state depends on the number of tokens."""
        return self.stops_at != 0


def account_states(
    config: ModelConfig, *, prefix_tokens: int = CONTEXT - 1
) -> tuple[StateAccount, ...]:
    """The state of each kind of sublayer that keeps one, after `prefix_tokens` tokens."""
    layers = Counter(kind for pair in config.layer_kinds() for kind in pair)
    sublayers: dict[str, SublayerModule] = {}
    for layer, pair in zip(meta_model(config).layers, config.layer_kinds(), strict=True):
        sublayers |= dict(zip(pair, (layer.mixer, layer.ffn), strict=True))
    return tuple(
        StateAccount(
            kind=kind,
            layers=layers[kind],
            state_bytes=sublayer.cost(prefix_tokens).state_bytes,
            first_token_bytes=sublayer.cost(1).state_bytes - sublayer.cost(0).state_bytes,
            stops_at=_stops_growing_at(sublayer),
        )
        for kind, sublayer in sublayers.items()
        if has_state(sublayer)
    )


def _stops_growing_at(sublayer: SublayerModule) -> int | None:
    """The least number of tokens after which the state has its final size."""

    def size_after(num_tokens: int) -> int:
        return sublayer.cost(num_tokens).state_bytes

    final = size_after(LONGEST)
    if size_after(2 * LONGEST) != final:
        return None
    return bisect_left(range(LONGEST), final, key=size_after)


def account_model(config: ModelConfig, *, prefix_tokens: int = CONTEXT - 1) -> ModelAccount:
    """Count a model; recurrence and state are those of a token after `prefix_tokens` others."""
    model = meta_model(config)
    kinds = config.layer_kinds()
    activations = {pair: _activation_bytes_per_token(config, *pair) for pair in set(kinds)}
    layers = tuple(
        LayerAccount(
            mixer=layer.mixer.cost(prefix_tokens),
            ffn=layer.ffn.cost(prefix_tokens),
            activation_bytes_per_token=activations[pair],
        )
        for layer, pair in zip(model.layers, kinds, strict=True)
    )
    mixer, ffn = (_mean_cost(layer.cost(sublayer) for layer in layers) for sublayer in BLOCK)
    return ModelAccount(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        ffn_share=ffn.projection_macs / (mixer.projection_macs + ffn.projection_macs),
        head_macs_per_token=model.embedding.weight.numel(),
        mixer=mixer,
        ffn=ffn,
        activation_bytes_per_token={
            sublayer: round(
                sum(layer.activation_bytes_per_token[sublayer] for layer in layers) / len(layers)
            )
            for sublayer in BLOCK
        },
        by_layer=layers if any(layer != layers[0] for layer in layers) else (),
        between_passes=tuple(
            PassAccount(passes=rule.passes, macs=rule.pass_macs())
            for rule in model.pass_rules
            if rule.pass_macs() > 0
        ),
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
    costs = model.costs(schedule)
    backbone = model.backbone_macs(schedule)
    full_backbone = model.backbone_macs(full_loop(num_layers, num_passes))
    head = model.head_macs_per_token
    return ScheduleAccount(
        notation=notation(schedule),
        mixer_applications=counts["mixer"],
        ffn_applications=counts["ffn"],
        projection_macs_per_token=backbone + head,
        backbone_ratio_to_full_loop=backbone / full_backbone,
        saving_to_full_loop=1 - (backbone + head) / (full_backbone + head),
        recurrence_macs_per_token=sum(cost.recurrence_macs for cost in costs),
        state_bytes_per_sequence=sum(cost.state_bytes for cost in costs),
        activation_bytes_per_token=model.activation_bytes(schedule),
    )


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a training step runs for a token."""

    with_grad: Schedule
    """Occurrences that run forward and backward."""
    no_grad: Schedule = ()
    """Occurrences that run forward only."""
    readouts: int = 1


def training_flops_per_token(
    model: LoopedLM, *, context: int = CONTEXT, work: Work | None = None
) -> int:
    """Forward and backward of projections, recurrence and head; recomputing is not counted.

    A multiply-add is two operations, and the backward of a product is two products. Where a cost
    grows with the tokens before, the mean over a window of `context` tokens counts. The default
    work is the model's own schedule.
    """
    work = Work(with_grad=model.schedule) if work is None else work
    macs: dict[tuple[int, Sublayer], float] = {}
    for occurrence in (*work.with_grad, *work.no_grad):
        address = occurrence.layer, occurrence.sublayer
        if address not in macs:
            macs[address] = _mean_macs(model.sublayer(occurrence), context)

    def macs_of(schedule: Schedule) -> float:
        rules = sum(rule.pass_macs() * rule.passes.number_in(schedule) for rule in model.pass_rules)
        return rules + sum(macs[one.layer, one.sublayer] for one in schedule)

    head = work.readouts * model.config.vocab_size * model.config.d_model
    return round(6 * (head + macs_of(work.with_grad)) + 2 * macs_of(work.no_grad))


def _mean_macs(sublayer: SublayerModule, context: int) -> float:
    """Multiply-adds of a token, over all places in a window."""

    def macs_at(prefix_tokens: int) -> int:
        cost = sublayer.cost(prefix_tokens)
        return cost.projection_macs + cost.recurrence_macs

    first = macs_at(0)
    if macs_at(context - 1) == first:  # a cost never falls, so all places between cost the same
        return first
    return sum(macs_at(place) for place in range(context)) / context


def _mean_cost(costs: Iterable[Cost]) -> Cost:
    costs = list(costs)
    return Cost(
        projection_macs=round(sum(cost.projection_macs for cost in costs) / len(costs)),
        recurrence_macs=round(sum(cost.recurrence_macs for cost in costs) / len(costs)),
        state_bytes=round(sum(cost.state_bytes for cost in costs) / len(costs)),
    )


def _activation_bytes_per_token(config: ModelConfig, mixer: str, ffn: str) -> dict[Sublayer, int]:
    """Run each sublayer of one layer and weigh the distinct tensors autograd keeps."""
    single = replace(
        config,
        num_layers=1,
        vocab_size=1,
        schedule="no_loop",
        mixer=(mixer,),
        ffn=(ffn,),
        options={mixer: config.options[mixer], ffn: config.options[ffn]},
    )
    try:
        model = fresh_model(single, seed=0, form="torch")
    except ValueError as error:
        raise ValueError(f"a single layer is run to measure its activations: {error}") from None
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[Sublayer, dict[int, Tensor]] = {}

    def enter(address: Address, residual: Tensor) -> None:
        kept[address.occurrence.sublayer] = {}

    def keep(tensor: Tensor) -> Tensor:
        entered_last = next(reversed(kept))
        kept[entered_last][tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    shape = 1, PROBE_TOKENS, model.config.d_model
    residual = torch.randn(shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.walk(residual, model.schedule, lens={"*.input": enter})
    return {
        sublayer: round(
            sum(one.untyped_storage().nbytes() for at, one in own.items() if at not in weights)
            / PROBE_TOKENS
        )
        for sublayer, own in kept.items()
    }
