"""Linear attention a chunk at a time, in operations that torch differentiates in every way.

Tokens of a chunk are rows of Q, K, V and of the erase keys E; S is the state that enters the chunk.
With G = cumsum(g), for each channel of the keys:

    L = exp(G)        D_ij = exp(G_i - G_j) for j <= i        Z = K * exp(G_C - G)
    A_ij = sum_d e_i k_j D_ij below the diagonal      P_ij = sum_d q_i k_j D_ij on and below it
    (I + A) U = V - (E * L) S        O = (Q * L) S + P U        S' = diag(L_C) S + Z^T U

If a head decays by one number, D is a matrix that scales E K^T and Q K^T. If each channel has its
own, D has an entry for each pair and channel, so those chunks are short. No exponent is positive.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from mixerloop.ops import derivatives
from mixerloop.ops.chunked import FORGETS, is_finite, solve
from mixerloop.ops.recurrent import recurrent_linear_attention

CHUNK_TOKENS = 64
CHANNEL_CHUNK_TOKENS = 16


def chunked_linear_attention(
    *,
    query: Float[Tensor, "batch seq heads d_key"],
    key: Float[Tensor, "batch seq heads d_key"],
    value: Float[Tensor, "batch seq heads d_value"],
    log_decay: Float[Tensor, "batch seq heads *d_key"] | None,
    erase_key: Float[Tensor, "batch seq heads d_key"] | None,
    initial_state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch seq heads d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """The rule in chunks; with a number that is not finite, or a single token, token by token."""
    seq = query.shape[1]
    if seq > 1 and not derivatives.numbers_are_hidden():
        by_channel = log_decay is not None and log_decay.ndim == 4
        chunk_tokens = min(seq, CHANNEL_CHUNK_TOKENS if by_channel else CHUNK_TOKENS)
        q, k, v, g, e = (
            None if x is None else _to_chunks(x, chunk_tokens)
            for x in (query, key, value, log_decay, erase_key)
        )
        assert q is not None
        assert k is not None
        assert v is not None
        output, final_state = _in_chunks(q, k, v, g, e, initial_state)
        if is_finite(final_state):
            return output.flatten(2, 3)[:, :, :seq].transpose(1, 2).contiguous(), final_state
    return recurrent_linear_attention(
        query=query,
        key=key,
        value=value,
        log_decay=log_decay,
        erase_key=erase_key,
        initial_state=initial_state,
    )


def _to_chunks(x: Tensor, chunk_tokens: int) -> Tensor:
    """[batch, heads, chunks, chunk_tokens, width]; padding decays nothing and writes nothing."""
    if x.ndim == 3:
        x = x[..., None]
    pad = -x.shape[1] % chunk_tokens
    padded = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, pad))
    return padded.transpose(1, 2).unflatten(2, (-1, chunk_tokens))


def _in_chunks(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, e: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs [batch, heads, chunks, chunk_tokens, d_value], and the state after the last chunk."""
    later = torch.ones(2 * q.shape[-2:-1], dtype=torch.bool, device=q.device).triu(1)
    if g is None:
        g = q.new_zeros(*q.shape[:-1], 1)
    # Differences of sums in float64: mild decays keep their digits beside brutal ones.
    total = g.double().clamp(min=FORGETS).cumsum(-2)
    start = total.exp().to(q.dtype)  # L
    kept = k * (total[..., -1:, :] - total).exp().to(q.dtype)  # Z
    whole = start[..., -1, :, None]  # L_C as a column
    pairs = (total[..., :, None, :] - total[..., None, :, :]).to(q.dtype)
    pairs = pairs.masked_fill(later[:, :, None], -torch.inf).exp()  # D [..., C, C, 1 or d_key]

    def overlaps(rows: Tensor) -> Tensor:
        if pairs.shape[-1] == 1:
            return pairs[..., 0] * (rows @ k.mT)
        return torch.einsum("...id,...jd,...ijd->...ij", rows, k, pairs)

    scores = overlaps(q)  # P
    alone, reading = v, None  # U = alone - reading @ S
    if e is not None:
        right = torch.cat([v, e * start], dim=-1)
        alone, reading = solve(overlaps(e).tril(-1), right).split(
            [v.shape[-1], k.shape[-1]], dim=-1
        )
    states, writes = [], []
    for n in range(q.shape[2]):
        states.append(state)
        write = alone[:, :, n]
        writes.append(write if reading is None else write - reading[:, :, n] @ state)
        state = whole[:, :, n] * state + kept[:, :, n].mT @ writes[-1]
    output = (q * start) @ torch.stack(states, dim=2) + scores @ torch.stack(writes, dim=2)
    return output, state
