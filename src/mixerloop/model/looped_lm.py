"""The looped language model: embed, walk the schedule, read out."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Literal, TypeVar, cast, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mixerloop import machine
from mixerloop.config import Form, FormChoice, ModelConfig
from mixerloop.model.ffns.swiglu import SwiGLU
from mixerloop.model.mixers.gated_delta_net import GatedDeltaNet
from mixerloop.model.norm import RMSNorm
from mixerloop.model.passes.pass_residual import PassResidualTable
from mixerloop.model.sublayer import Mixer, MixerState
from mixerloop.ops.gated_delta_rule import choose_form
from mixerloop.ops.precision import product_dtype
from mixerloop.schedule import Occurrence, Schedule, Sublayer

T = TypeVar("T")
TapPoint = Literal["input", "update"]
"""The residual that enters an occurrence, and what the occurrence adds to it."""
Taps = Mapping[tuple[Occurrence, TapPoint], Callable[[Tensor], Tensor]]
"""Functions that see an activation at its address; what they return takes its place."""
MixerStates = Mapping[Occurrence, MixerState]

MIXERS = {"gated_delta_net": GatedDeltaNet}
WEIGHT_DTYPES = (torch.float32, torch.float64)
ID_DTYPES = (torch.int32, torch.int64)


class Layer(nn.Module):
    """One physical block of weights: a mixer and an ffn, each with its norm."""

    mixer: Mixer

    def __init__(self, config: ModelConfig, mixer: Mixer, *, form: Form) -> None:
        super().__init__()
        norm = partial(RMSNorm, config.d_model, config.norm_eps, form=form)
        self.mixer_norm = norm()
        self.mixer = mixer
        self.ffn_norm = norm()
        self.ffn = SwiGLU(config, form=form)

    def forward(
        self,
        residual: Float[Tensor, "batch seq d_model"],
        sublayer: Sublayer,
        *,
        state: MixerState | None = None,
        context_off: bool = False,
    ) -> tuple[Float[Tensor, "batch seq d_model"], MixerState | None]:
        """What one sublayer adds to the residual, and the mixer's state after it."""
        dtype = product_dtype(residual)
        if sublayer == "ffn":
            return self.ffn(self.ffn_norm(residual, dtype)), None
        if context_off:
            return self.mixer.context_off(self.mixer_norm(residual, dtype)), state
        return self.mixer(self.mixer_norm(residual, dtype), state)


class LoopedLM(nn.Module):
    """A stack of layers and the schedule it was made for; any other must be asked for."""

    layers: Sequence[Layer]

    def __init__(self, config: ModelConfig, *, form: FormChoice = "auto") -> None:
        super().__init__()
        machine.keep_off_hidden_amx()
        self.config = config
        self.schedule = config.occurrences()
        self.embedding = nn.Embedding.from_pretrained(  # which draws nothing, also not on `meta`
            torch.empty(config.vocab_size, config.d_model), freeze=False
        )
        self.form: Form = choose_form(form)
        """The form in which every operator of this model is run."""
        mixer = MIXERS[config.mixer]
        layers = [
            Layer(
                config,
                mixer(config, form=self.form),
                form=self.form,
            )
            for _ in range(config.num_layers)
        ]
        self.layers = cast(Sequence[Layer], nn.ModuleList(layers))
        self.final_norm = RMSNorm(config.d_model, config.norm_eps, form=self.form)
        unit = config.residual_unit()
        self.pass_residual = (
            None
            if unit is None
            else PassResidualTable(unit=unit, schedule=self.schedule, d_model=config.d_model)
        )

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
        schedule = self.schedule if schedule is None else schedule
        residual, _ = self.walk(self.embed(tokens), schedule, context_off=context_off, taps=taps)
        return self.read_out(residual, positions)

    def embed(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq d_model"]:
        """The residual before the first occurrence."""
        if (dtype := self.embedding.weight.dtype) not in WEIGHT_DTYPES:
            raise ValueError(f"weights must stay float32, got {dtype}; compute in it by autocast")
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
        before_pass: Float[Tensor, "batch seq d_model"] | None = None,
        recompute: bool = False,
    ) -> tuple[Float[Tensor, "batch seq d_model"], dict[Occurrence, MixerState]]:
        """Run the occurrences in order; with `states` each mixer occurrence goes on from its own.

        The states after the last token come back only to a caller who gave some. A schedule may be
        walked in parts; a part that starts inside a pass of `pass_residual` needs `before_pass`.
        With `recompute` autograd keeps the residual that enters an occurrence and nothing else.
        """
        taps = taps or {}
        self._check_addresses(schedule, context_off, taps)
        new_states: dict[Occurrence, MixerState] = {}
        table = self.pass_residual
        for occurrence in schedule:
            if tap := taps.get((occurrence, "input")):
                residual = _tapped(tap, residual, occurrence)
            if table is not None and table.opens(occurrence):
                before_pass = residual
            state = states[occurrence] if states and occurrence.sublayer == "mixer" else None
            run = partial(
                self.layers[occurrence.layer],
                sublayer=occurrence.sublayer,
                state=state,
                context_off=occurrence in context_off,
            )
            update, state = _recomputed(run, residual) if recompute else run(residual)
            if tap := taps.get((occurrence, "update")):
                update = _tapped(tap, update, occurrence)
            residual = residual + update
            if table is not None and table.closes(occurrence):
                residual = residual + table(occurrence, before_pass)
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
        for occurrence, point in taps:
            if point not in get_args(TapPoint):
                known_points = ", ".join(get_args(TapPoint))
                raise ValueError(f"{occurrence}: no tap point '{point}'; known: {known_points}")


def _recomputed(run: Callable[..., T], residual: Tensor) -> T:
    """Run now and, for its gradients, once more; nothing in a layer is drawn at random."""
    return checkpoint(run, residual, use_reentrant=False, preserve_rng_state=False)  # pyright: ignore


def _tapped(tap: Callable[[Tensor], Tensor], x: Tensor, occurrence: Occurrence) -> Tensor:
    replaced = tap(x)
    if not isinstance(replaced, Tensor) or replaced.shape != x.shape:
        raise ValueError(f"{occurrence}: a tap must return a tensor of the shape it was given")
    return replaced


def _check_tokens(tokens: Tensor, vocab_size: int) -> None:
    if tokens.dtype not in ID_DTYPES:
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
    if positions.dtype not in ID_DTYPES:
        raise ValueError(f"positions must be int32 or int64, got {positions.dtype}")
    if not torch.compiler.is_compiling() and bool(((positions < -seq) | (positions >= seq)).any()):
        raise ValueError(f"positions must lie in a sequence of {seq} tokens")
    positions = (positions % seq).expand(batch, -1)
    return residual.gather(1, positions[..., None].long().expand(-1, -1, d_model))
