"""The gated delta rule a chunk at a time: matrix products, and a backward written by hand.

Tokens of a chunk are rows of Q, K, V (C of them); S is the state that enters the chunk; b is the
write strength, and a product with b, E or z scales rows. With G = cumsum(g):

    E = exp(G)        D_ij = exp(G_i - G_j) for j <= i        z_j = exp(G_C - G_j)
    A = D * K K^T below the diagonal      P = D * Q K^T on and below it      M = I + b A
    M U = b (V - E K S)        O = E (Q S) + P U        S' = E_C S + (z K)^T U

U holds the write of each token, corrected for the earlier tokens of its chunk.
With the states at the chunk borders known, everything but the walk over the states is a batch over
chunks; so the forward keeps the inputs and those states, and the backward recomputes the rest.

Second derivatives, forward mode and the transforms of `torch.func` go through the same equations
by autograd. A chunk with a number that is not finite runs token by token: in a product with the
zeros of a triangle such a number would reach earlier tokens.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mixerloop.ops import derivatives
from mixerloop.ops.recurrent import recurrent_gated_delta_rule

CHUNK_TOKENS = 64
TILE_TOKENS = 2048  # tokens x heads worked on at a time
FORGETS = -800.0
"""A log decay whose exponential is 0 in float64; sums of it keep the digits of weak decays."""


def chunked_gated_delta_rule(
    *,
    query: Float[Tensor, "batch seq heads d_key"],
    key: Float[Tensor, "batch seq heads d_key"],
    value: Float[Tensor, "batch seq heads d_value"],
    log_decay: Float[Tensor, "batch seq heads"],
    write_strength: Float[Tensor, "batch seq heads"],
    initial_state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch seq heads d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """The rule in chunks of `CHUNK_TOKENS`; a shorter sequence is a single chunk.

    In a chunk of a single token M is 1 and the equations are the recurrence. The recurrent form
    then runs: the same arithmetic without the chunks and tiles, which would slow decoding down.
    """
    inputs = (query, key, value, log_decay, write_strength, initial_state)
    if query.shape[1] == 1:
        return _recurrent(*inputs)
    if derivatives.transforms_are_active():
        return _by_autograd(*inputs)
    output, final_state = _ChunkedGatedDeltaRule.apply(*inputs)
    return output, final_state


def _recurrent(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    query, key, value, log_decay, write_strength, initial_state = inputs
    return recurrent_gated_delta_rule(
        query=query,
        key=key,
        value=value,
        log_decay=log_decay,
        write_strength=write_strength,
        initial_state=initial_state,
    )


def _by_autograd(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The rule in operations that torch can differentiate in every way."""
    *tokens, initial_state = inputs
    if derivatives.numbers_are_hidden():
        return _recurrent(*inputs)
    output, _, final_state = forward(Chunks(*map(to_chunks, tokens)), initial_state)
    if not bool(final_state.isfinite().all()):
        return _recurrent(*inputs)
    return from_chunks(output, tokens[0].shape[1]).contiguous(), final_state


class _ChunkedGatedDeltaRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *inputs):
        *tokens, initial_state = inputs
        batch, seq, heads, _ = tokens[2].shape
        output = torch.empty_like(tokens[2])
        final_state = torch.empty_like(initial_state)
        states = final_state.new_empty(batch, heads, num_chunks(seq), *final_state.shape[-2:])
        for rows, columns in tiles(batch, seq, heads):
            result, states[rows, columns], final_state[rows, columns] = forward(
                Chunks(*(to_chunks(x[rows, :, columns]) for x in tokens)),
                initial_state[rows, columns],
            )
            output[rows, :, columns] = from_chunks(result, seq)
        ctx.broken = None if is_finite(final_state) else broken_chunks(states, final_state)
        if ctx.broken is not None:
            result = to_chunks(output)
            result[ctx.broken], _ = token_by_token(
                Chunks(*(to_chunks(x)[ctx.broken] for x in tokens)), states[ctx.broken]
            )
            output = from_chunks(result, seq).contiguous()
        ctx.save_for_backward(*inputs, states)
        return output, final_state

    @staticmethod
    def backward(ctx, *d_results):  # pyright: ignore[reportIncompatibleMethodOverride]
        d_output, d_final_state = d_results
        derivatives.refuse_batches("gated_delta_rule", "torch", *d_results)
        *inputs, states = ctx.saved_tensors
        tokens = inputs[:-1]
        with torch.autocast(d_output.device.type, enabled=False):
            if derivatives.needs_more_than_gradients():
                return tuple(derivatives.gradients_through(_by_autograd, inputs, d_results))
            d_tokens = [torch.empty_like(x) for x in tokens]
            d_initial_state = torch.empty_like(d_final_state)
            for rows, columns in tiles(*d_output.shape[:3]):
                d_chunks, d_initial_state[rows, columns] = backward(
                    Chunks(*(to_chunks(x[rows, :, columns]) for x in tokens)),
                    states[rows, columns],
                    to_chunks(d_output[rows, :, columns]),
                    d_final_state[rows, columns],
                    None if ctx.broken is None else ctx.broken[rows, columns],
                )
                for d_input, gradient in zip(d_tokens, d_chunks, strict=True):
                    d_input[rows, :, columns] = from_chunks(gradient, d_output.shape[1])
        return *d_tokens, d_initial_state


def num_chunks(seq: int) -> int:
    """How many chunks hold `seq` tokens."""
    return -(-seq // CHUNK_TOKENS)


def tiles(batch: int, seq: int, heads: int) -> Iterator[tuple[slice, slice]]:
    """Parts of batch x heads, small enough that the temporaries of a part stay small."""
    num_heads = max(1, min(heads, TILE_TOKENS // seq))
    num_rows = max(1, TILE_TOKENS // (seq * heads))
    for row in range(0, batch, num_rows):
        for head in range(0, heads, num_heads):
            yield slice(row, row + num_rows), slice(head, head + num_heads)


class Chunks(NamedTuple):
    """The inputs of the rule, each [batch, heads, num_chunks, chunk_tokens, ...]."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    b: Tensor


def to_chunks(x: Tensor) -> Tensor:
    """Cut [batch, seq, heads, ...] into chunks; padding has b = 0 and g = 0 and changes nothing."""
    batch, seq, heads = x.shape[:3]
    chunk_tokens = min(CHUNK_TOKENS, seq)
    padded = x.new_zeros(batch, heads, num_chunks(seq) * chunk_tokens, *x.shape[3:])
    padded[:, :, :seq] = x.transpose(1, 2)
    return padded.unflatten(2, (-1, chunk_tokens))


def from_chunks(x: Tensor, seq: int) -> Tensor:
    """Join chunks to [batch, seq, heads, ...], without the padding of `to_chunks`."""
    return x.flatten(2, 3)[:, :, :seq].transpose(1, 2)


class Decay(NamedTuple):
    """The decays inside a chunk. No exponent is ever positive, so none overflows."""

    start: Tensor  # E  [..., C, 1]  from the chunk's start to a token
    pairs: Tensor  # D  [..., C, C]  from token j to a later token i
    end: Tensor  # z  [..., C, 1]  from a token to the chunk's end
    whole: Tensor  # E_C  [..., 1, 1]


def decays(g: Tensor) -> Decay:
    """All the decays between places in a chunk, from the log decay of its tokens.

    The decays are differences of sums, so the sums are float64: a token with a strong decay makes
    the sums large, and in float32 later tokens with a weak decay would lose their digits. A log
    decay of -inf would make the differences of its sums no numbers.
    """
    total = g.double().clamp(min=FORGETS).cumsum(-1)
    later = torch.ones(2 * g.shape[-1:], dtype=torch.bool, device=g.device).triu(1)
    return Decay(
        start=total.exp().to(g.dtype)[..., None],
        pairs=(total[..., :, None] - total[..., None, :])
        .to(g.dtype)
        .masked_fill_(later, -torch.inf)
        .exp_(),
        end=(total[..., -1:] - total).exp().to(g.dtype)[..., None],
        whole=total[..., -1:].exp().to(g.dtype)[..., None],
    )


def solve(below: Tensor, right: Tensor) -> Tensor:
    """(I + below)^-1 right, by forward substitution; `below` is strictly lower triangular."""
    return torch.linalg.solve_triangular(below, right, upper=False, unitriangular=True)


def forward(chunks: Chunks, initial_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, the state that enters each chunk, and the state after the last chunk."""
    q, k, v, g, _ = chunks
    b = chunks.b[..., None]
    decay = decays(g)

    below = b * (decay.pairs * (k @ k.mT)).tril_(-1)  # M - I
    alone, reading = solve(below, b * torch.cat([v, decay.start * k], dim=-1)).split(
        [v.shape[-1], k.shape[-1]], dim=-1
    )  # U = alone - reading @ S
    kept = (decay.end * k).mT

    state, states, writes = initial_state, [], []
    for n in range(g.shape[2]):
        states.append(state)
        writes.append(alone[:, :, n] - reading[:, :, n] @ state)
        state = decay.whole[:, :, n] * state + kept[:, :, n] @ writes[-1]

    states, writes = torch.stack(states, dim=2), torch.stack(writes, dim=2)
    output = decay.start * (q @ states) + (decay.pairs * (q @ k.mT)) @ writes
    return output, states, state


def is_finite(state: Tensor) -> bool:
    """Whether the sum of a state is finite, and so all its numbers, where reading it is free.

    A non-finite key, value, log decay or write strength makes at least a column of the state
    non-finite for good, so the final state shows all of them; the gradient of the initial state
    shows those of the backward. Another device than a CPU would have to finish its work first.
    """
    if torch.compiler.is_compiling() or state.device.type != "cpu":
        return True
    return math.isfinite(state.sum().item())


def broken_chunks(
    entering: Float[Tensor, "batch heads chunks d_key d_value"],
    last: Float[Tensor, "batch heads d_key d_value"],
) -> Bool[Tensor, "batch heads chunks"]:
    """Chunks that make a finite column of the state non-finite, in the order of the walk."""
    finite = torch.cat([entering, last[:, :, None]], dim=2).isfinite().all(-2)
    return (finite[:, :, :-1] & ~finite[:, :, 1:]).any(-1)


def token_by_token(chunks: Chunks, states: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs of single chunks, each [chunk_tokens, ...] behind one dimension, and states after."""
    output, final_states = _recurrent(*(x[:, :, None] for x in chunks), states[:, None])
    return output[:, :, 0], final_states[:, 0]


def gradients_token_by_token(
    chunks: Chunks, states: Tensor, d_output: Tensor, d_states_out: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of the inputs of single chunks, by autograd."""
    with torch.enable_grad():
        leaves = Chunks(*(x.detach().requires_grad_() for x in chunks))
        return torch.autograd.grad(token_by_token(leaves, states), leaves, (d_output, d_states_out))


def backward(
    chunks: Chunks,
    states: Tensor,
    d_output: Tensor,
    d_final_state: Tensor,
    broken: Tensor | None = None,
) -> tuple[Chunks, Tensor]:
    """Gradients of the inputs and of the initial state."""
    q, k, v, g, _ = chunks
    b = chunks.b[..., None]
    decay = decays(g)

    # Intermediates of the forward, computed again.
    lower = (decay.pairs * (k @ k.mT)).tril_(-1)  # A
    below = b * lower  # M - I
    stored = k @ states
    surprise = v - decay.start * stored
    writes = solve(below, b * surprise)  # U

    d_writes, d_states_out, d_initial_state = backward_over_states(
        chunks, decay, below, d_output, d_final_state
    )
    d_right = torch.linalg.solve_triangular(below.mT, d_writes, upper=True, unitriangular=True)
    d_lower = -(d_right @ writes.mT).tril_(-1)  # dM
    d_scores = decay.pairs * (d_output @ writes.mT)  # D * dP
    d_overlap = decay.pairs * (b * d_lower)  # D * dA
    d_stored = -(b * decay.start) * d_right
    d_kept = writes @ d_states_out.mT

    d_q = decay.start * (d_output @ states.mT) + d_scores @ k
    d_k = (
        d_stored @ states.mT + d_scores.mT @ q + (d_overlap + d_overlap.mT) @ k + decay.end * d_kept
    )
    d_v = b * d_right
    d_b = (d_right * surprise).sum(-1) + (d_lower * lower).sum(-1)

    # Every decay is exp of a difference of places in the cumulative sum. In float64: what two
    # places add to and take from the sums must cancel, also where a strong decay leaves little.
    pairs = d_scores * (q @ k.mT) + b * (d_lower * lower)
    from_pairs = pairs.sum(-1, dtype=torch.float64) - pairs.sum(-2, dtype=torch.float64)
    d_start = (d_output * (q @ states)).sum(-1) - b[..., 0] * (d_right * stored).sum(-1)
    d_end = ((k * d_kept).sum(-1) * decay.end[..., 0]).double()
    d_whole = decay.whole[..., 0, 0] * (d_states_out * states).sum((-1, -2))
    d_total = d_start * decay.start[..., 0] + from_pairs - d_end
    d_total[..., -1] += d_end.sum(-1) + d_whole
    d_g = d_total.flip(-1).cumsum(-1).flip(-1).to(g.dtype)
    d_chunks = Chunks(d_q, d_k, d_v, d_g, d_b)
    if not is_finite(d_initial_state):
        in_backward = broken_chunks(d_states_out.flip(2), d_initial_state).flip(2)
        broken = in_backward if broken is None else broken | in_backward
    if broken is not None:
        exact = gradients_token_by_token(
            Chunks(*(x[broken] for x in chunks)),
            *(x[broken] for x in (states, d_output, d_states_out)),
        )
        for d_input, gradient in zip(d_chunks, exact, strict=True):
            d_input[broken] = gradient
    return d_chunks, d_initial_state


def backward_over_states(
    chunks: Chunks, decay: Decay, below: Tensor, d_output: Tensor, d_final_state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Last chunk to first: gradients of U, of the state after each chunk, of the initial state."""
    q, k = chunks.q, chunks.k
    reading = solve(below, chunks.b[..., None] * decay.start * k)  # M^-1 b E K
    d_writes_inside = (decay.pairs * (q @ k.mT)).mT @ d_output
    d_states_inside = (decay.start * q).mT @ d_output
    kept = decay.end * k
    d_state, d_states_out, d_writes = d_final_state, [], []
    for n in reversed(range(k.shape[2])):
        d_states_out.append(d_state)
        d_writes.append(d_writes_inside[:, :, n] + kept[:, :, n] @ d_state)
        d_state = (
            d_states_inside[:, :, n]
            - reading[:, :, n].mT @ d_writes[-1]
            + decay.whole[:, :, n] * d_state
        )
    return torch.stack(d_writes[::-1], dim=2), torch.stack(d_states_out[::-1], dim=2), d_state
