"""Decoding: a state per occurrence, carried from token to token.

A `DecodeState` is a value: nothing changes it in place. A snapshot is the state itself. To roll
back, continue from an earlier state; to fork, continue from a state twice, or `fork` it into a
batch. No gradients flow through decoding; to train through states, give them to `LoopedLM.walk`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mixerloop.model.looped_lm import LoopedLM, check_ids
from mixerloop.model.sublayer import State
from mixerloop.model.walk import States
from mixerloop.ops.threads import worthwhile_threads
from mixerloop.parsing import checked
from mixerloop.schedule import Schedule

PREFILL_TOKENS = 2048
"""Tokens of a prompt that are run at a time; a longer prompt needs no more memory."""


@dataclass(frozen=True)
class DecodeState:
    """What a batch of sequences has left behind in every occurrence of a schedule."""

    schedule: Schedule
    states: States
    batch: int
    num_tokens: int
    """Tokens seen so far; the most, where sequences of different lengths stand side by side."""
    macs_per_token: int
    """Multiply-adds with weights, the head's among them."""

    @checked
    def fork(self, num: int) -> "DecodeState":
        """Each sequence `num` times, copies side by side."""
        if num < 1:
            raise ValueError(f"num must be at least 1, got {num}")
        return self.select(torch.arange(self.batch).repeat_interleave(num))

    def select(self, rows: Int[Tensor, " num"]) -> "DecodeState":
        """The sequences of these rows, in this order; a row may come more than once."""
        check_ids("rows", rows)
        if rows.ndim != 1:
            raise ValueError(f"rows must be [num], got {tuple(rows.shape)}")
        if rows.numel() == 0 or bool(((rows < 0) | (rows >= self.batch)).any()):
            raise ValueError(f"rows must name some of {self.batch} sequences, got {rows.tolist()}")
        states = {
            occurrence: _rebuild(state, [tensor[rows.to(tensor.device)] for tensor in state])
            for occurrence, state in self.states.items()
        }
        return replace(self, states=states, batch=len(rows))

    def nbytes(self) -> int:
        """Memory held by the states."""
        return sum(tensor.nbytes for state in self.states.values() for tensor in state)


@checked
def start(model: LoopedLM, *, batch: int = 1, schedule: Schedule | None = None) -> DecodeState:
    """The state before the first token; a schedule other than the model's own is named here."""
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    schedule = model.schedule if schedule is None else schedule
    weight = model.embedding.weight
    sublayers = {occurrence: model.sublayer(occurrence) for occurrence in schedule}
    states = {
        occurrence: sublayer.initial_state(batch, model.dtype, weight.device)
        for occurrence, sublayer in sublayers.items()
    }
    macs = weight.numel() + sum(sublayer.cost(0).projection_macs for sublayer in sublayers.values())
    return DecodeState(schedule, states, batch, num_tokens=0, macs_per_token=macs)


def side_by_side(states: Sequence[DecodeState]) -> DecodeState:
    """All sequences of several states of one schedule, in their order."""
    first = states[0]
    if any(state.schedule != first.schedule for state in states):
        raise ValueError("states of different schedules cannot be joined")
    shapes = {tuple(tensor.shape[1:] for tensor in held) for held in first.states.values()}
    for state in states[1:]:
        if {tuple(one.shape[1:] for one in held) for held in state.states.values()} != shapes:
            raise ValueError("states that grow can be joined only after equal numbers of tokens")
    joined = {
        occurrence: _rebuild(
            state,
            [
                torch.cat(parts)
                for parts in zip(*(one.states[occurrence] for one in states), strict=True)
            ],
        )
        for occurrence, state in first.states.items()
    }
    return replace(
        first,
        states=joined,
        batch=sum(state.batch for state in states),
        num_tokens=max(state.num_tokens for state in states),
    )


@torch.no_grad()
def feed(
    model: LoopedLM, tokens: Int[Tensor, "batch seq"], state: DecodeState
) -> tuple[Float[Tensor, "batch seq d_model"], DecodeState]:
    """Feed tokens; returns the residual, not yet read out, and the next state."""
    _check(tokens, state)
    if tokens.shape[0] != state.batch:
        raise ValueError(f"tokens hold {tokens.shape[0]} sequences, the state {state.batch}")
    walked = model.walk(model.embed(tokens), state.schedule, states=state.states)
    num_tokens = state.num_tokens + tokens.shape[1]
    return walked.residual, replace(state, states=walked.states, num_tokens=num_tokens)


@torch.no_grad()
def advance(
    model: LoopedLM,
    tokens: Int[Tensor, "batch seq"],
    state: DecodeState,
    *,
    positions: Int[Tensor, "..."] | None = None,
) -> tuple[Float[Tensor, "batch positions vocab"], DecodeState]:
    """Feed tokens; returns logits at `positions` among them, or at all, and the next state."""
    _check(tokens, state)
    with worthwhile_threads(tokens.numel() * state.macs_per_token):
        residual, after = feed(model, tokens, state)
        return model.read_out(residual, positions), after


@torch.no_grad()
def prefill(
    model: LoopedLM,
    tokens: Int[Tensor, "batch seq"],
    state: DecodeState,
    *,
    chunk_tokens: int = PREFILL_TOKENS,
) -> tuple[Float[Tensor, "batch vocab"], DecodeState]:
    """Feed a prompt piece by piece; returns the logits after its last token and the state."""
    _check(tokens, state)
    if not isinstance(chunk_tokens, int):
        raise TypeError(f"chunk_tokens must be int, got {chunk_tokens!r}")
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens}")
    residual = None
    for piece in tokens.split(chunk_tokens, dim=1):
        residual, state = feed(model, piece, state)
    if residual is None:
        raise ValueError("the prompt is empty")
    return model.read_out(residual, torch.tensor([-1], device=residual.device))[:, 0], state


def _check(tokens: Tensor, state: DecodeState) -> None:
    """`checked` would cost a token more than this."""
    check_ids("tokens", tokens)
    if tokens.ndim != 2:
        raise ValueError(f"tokens must be [batch, seq], got {tuple(tokens.shape)}")
    if not isinstance(state, DecodeState):
        raise TypeError(f"state must be a DecodeState, got {state!r}; start(model) makes one")


def _rebuild(state: State, tensors: list[Tensor]) -> State:
    """The same kind of (named) tuple with other tensors."""
    make: Any = getattr(type(state), "_make", tuple)
    return make(tensors)
