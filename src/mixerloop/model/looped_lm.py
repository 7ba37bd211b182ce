"""The looped language model: embed, walk the schedule, read out."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from mixerloop import machine
from mixerloop.config import ModelConfig
from mixerloop.model.ffn import SwiGLU
from mixerloop.model.gated_delta_net import GatedDeltaNet
from mixerloop.model.norm import RMSNorm
from mixerloop.model.sublayer import Mixer, MixerState
from mixerloop.notation import pass_spans
from mixerloop.ops.gated_delta_rule import ImplementationChoice, choose_implementation
from mixerloop.schedule import Occurrence, Schedule, num_passes_of

TapPoint = Literal["input", "update"]
"""The residual that enters an occurrence, and what the occurrence adds to it."""
Taps = Mapping[tuple[Occurrence, TapPoint], Callable[[Tensor], Tensor]]
"""Functions that see an activation at its address; what they return takes its place."""
MixerStates = Mapping[Occurrence, MixerState]

MIXERS = {"gated_delta_net": GatedDeltaNet}


class Layer(nn.Module):
    """One physical block of weights: a mixer and an ffn, each with its norm."""

    mixer: Mixer

    def __init__(self, config: ModelConfig, mixer: Mixer) -> None:
        super().__init__()
        self.mixer_norm = RMSNorm(config.d_model, config.norm_eps)
        self.mixer = mixer
        self.ffn_norm = RMSNorm(config.d_model, config.norm_eps)
        self.ffn = SwiGLU(config)


class LoopedLM(nn.Module):
    """A stack of layers and the schedule it was made for; any other must be asked for."""

    layers: Sequence[Layer]
    pass_residual: nn.Parameter | None

    def __init__(
        self, config: ModelConfig, *, implementation: ImplementationChoice = "auto"
    ) -> None:
        super().__init__()
        machine.settle()
        self.config = config
        self.schedule = config.occurrences()
        self.implementation = choose_implementation(implementation)
        mixer = MIXERS[config.mixer]
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        layers = [
            Layer(config, mixer(config, implementation=self.implementation))
            for _ in range(config.num_layers)
        ]
        self.layers = cast(Sequence[Layer], nn.ModuleList(layers))
        self.final_norm = RMSNorm(config.d_model, config.norm_eps)
        self.register_parameter("pass_residual", None)
        if config.pass_residual:
            rows = num_passes_of(self.schedule)
            self.pass_residual = nn.Parameter(torch.empty(rows, config.d_model))

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        *,
        positions: Int[Tensor, "..."] | None = None,
        schedule: Schedule | None = None,
        context_off: Collection[Occurrence] = (),
        taps: Taps | None = None,
    ) -> Float[Tensor, "batch positions vocab"]:
        """Logits at `positions`, or everywhere."""
        residual, _ = self.walk(
            self.embed(tokens), schedule or self.schedule, context_off=context_off, taps=taps
        )
        return self.read_out(residual, positions)

    def embed(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq d_model"]:
        """The residual before the first occurrence."""
        _check_tokens(tokens, self.config.vocab_size)
        return self.embedding(tokens)

    def walk(
        self,
        residual: Float[Tensor, "batch seq d_model"],
        schedule: Schedule,
        *,
        states: MixerStates | None = None,
        context_off: Collection[Occurrence] = (),
        taps: Taps | None = None,
    ) -> tuple[Float[Tensor, "batch seq d_model"], dict[Occurrence, MixerState]]:
        """Run the occurrences in order; with `states` each mixer occurrence goes on from its own.

        The states after the last token come back only to a caller who gave some.
        """
        taps = taps or {}
        self._check_addresses(schedule, context_off, taps)
        entered, left = self._passes(schedule)
        new_states: dict[Occurrence, MixerState] = {}
        before_pass = residual
        for index, occurrence in enumerate(schedule):
            if tap := taps.get((occurrence, "input")):
                residual = tap(residual)
            if index in entered:
                before_pass = residual
            old_state = states[occurrence] if states and occurrence.sublayer == "mixer" else None
            update, state = self._run(
                occurrence, residual, state=old_state, context_off=occurrence in context_off
            )
            if tap := taps.get((occurrence, "update")):
                update = tap(update)
            residual = residual + update
            if index in left and self.pass_residual is not None:
                residual = residual + self.pass_residual[left[index]] * before_pass
            if states and state is not None:
                new_states[occurrence] = state
        return residual, new_states

    def read_out(
        self,
        residual: Float[Tensor, "batch seq d_model"],
        positions: Int[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch positions vocab"]:
        """Logits at `positions` only: [num] for all rows alike, or [batch, num]; -1 is the last."""
        if positions is not None:
            residual = _at(residual, positions)
        logits = F.linear(self.final_norm(residual), self.embedding.weight)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _run(
        self,
        occurrence: Occurrence,
        residual: Tensor,
        *,
        state: MixerState | None,
        context_off: bool,
    ) -> tuple[Tensor, MixerState | None]:
        layer = self.layers[occurrence.layer]
        if occurrence.sublayer == "ffn":
            return layer.ffn(layer.ffn_norm(residual)), None
        if context_off:
            return layer.mixer.context_off(layer.mixer_norm(residual)), state
        return layer.mixer(layer.mixer_norm(residual), state)

    def _passes(self, schedule: Schedule) -> tuple[frozenset[int], Mapping[int, int]]:
        """The occurrences a pass starts with, and ends with (and which pass it is)."""
        if self.pass_residual is None:
            return frozenset(), {}
        entered, left = _pass_ends(schedule)
        needed = 1 + max(left.values(), default=-1)
        if needed > (rows := self.pass_residual.shape[0]):
            raise ValueError(
                f"pass_residual was learned for {rows} passes, the schedule has {needed}"
            )
        return entered, left

    def _check_addresses(
        self, schedule: Schedule, context_off: Collection[Occurrence], taps: Taps
    ) -> None:
        for occurrence in schedule:
            if not 0 <= occurrence.layer < len(self.layers):
                raise ValueError(f"{occurrence}: the model has {len(self.layers)} layers")
        if not (context_off or taps):
            return
        known = set(schedule)
        for occurrence in (*context_off, *(occurrence for occurrence, _ in taps)):
            if occurrence not in known:
                raise ValueError(f"{occurrence} is not in the schedule, so nothing would happen")
        for occurrence in context_off:
            if occurrence.sublayer != "mixer":
                raise ValueError(f"{occurrence}: only a mixer has context to switch off")


@lru_cache
def _pass_ends(schedule: Schedule) -> tuple[frozenset[int], Mapping[int, int]]:
    spans = pass_spans(schedule)
    return frozenset(s.start for s in spans), {s.stop - 1: s.pass_index for s in spans}


def _check_tokens(tokens: Tensor, vocab_size: int) -> None:
    if tokens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"tokens must be int32 or int64, got {tokens.dtype}")
    if tokens.ndim != 2 or tokens.shape[1] == 0:
        raise ValueError(f"tokens must be [batch, seq] with seq > 0, got {tuple(tokens.shape)}")
    if torch.compiler.is_compiling() or tokens.device.type != "cpu":
        return  # CUDA's own embedding check does this without waiting for the device
    low, high = (int(bound) for bound in torch.aminmax(tokens))
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise ValueError(f"token id {wrong} is outside the vocabulary of {vocab_size:,}")


def _at(residual: Tensor, positions: Tensor) -> Tensor:
    batch, seq, d_model = residual.shape
    if positions.ndim not in (1, 2) or (positions.ndim == 2 and positions.shape[0] != batch):
        raise ValueError(f"positions must be [num] or [{batch}, num], got {tuple(positions.shape)}")
    if positions.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"positions must be int32 or int64, got {positions.dtype}")
    if not torch.compiler.is_compiling() and bool(((positions < -seq) | (positions >= seq)).any()):
        raise ValueError(
            f"positions must lie in a sequence of {seq} tokens, got {positions.tolist()}"
        )
    positions = (positions % seq).expand(batch, -1)
    return residual.gather(1, positions[..., None].long().expand(-1, -1, d_model))
