"""Causal softmax attention: every token reads all earlier tokens, or those in its window."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from mixerloop.config import Form
from mixerloop.kinds import AttentionOptions
from mixerloop.model.lens import UNWATCHED, Axes, Look
from mixerloop.model.norm import RMSNorm
from mixerloop.model.projection import Projection
from mixerloop.model.rotary import Rotary, positions_after
from mixerloop.model.sublayer import Cost, MixerModule, Output, Place, State

Read = Float[Tensor, "batch seq heads d_head"]


class AttentionState(NamedTuple):
    """Keys and values so far, or the last `window - 1` of them; keys have turned already.

    Heads come before tokens: once a token is decoded, the tokens of a head lie side by side, as
    attention reads them.
    """

    keys: Float[Tensor, "batch kv_heads kept d_head"]
    values: Float[Tensor, "batch kv_heads kept d_head"]
    num_tokens: Int[Tensor, " batch"]
    """Tokens so far, which is the position of the next token."""


class Attention(MixerModule):
    """Projections, rotary positions, torch's attention, an optional gate, projection."""

    def __init__(self, options: AttentionOptions, place: Place) -> None:
        super().__init__()
        self.num_heads, self.d_head = options.num_heads, options.d_head
        self.num_kv_heads, self.window = options.kv_heads, options.window
        d_inner, d_kv = self.num_heads * self.d_head, self.num_kv_heads * self.d_head
        self.qkv_proj = Projection(
            place.d_model, d_inner + 2 * d_kv, bias=options.qkv_bias, form=place.form
        )
        self.output_proj = Projection(
            d_inner, place.d_model, bias=options.output_bias, form=place.form
        )
        self.gate_proj = (
            Projection(place.d_model, d_inner, form=place.form) if options.output_gate else None
        )
        self.query_norm = self.key_norm = self.rotary = None
        self.norms_all_heads = options.query_key_norm == "all_heads"
        if options.query_key_norm != "none":
            widths = (d_inner, d_kv) if self.norms_all_heads else (self.d_head, self.d_head)
            self.query_norm, self.key_norm = (
                RMSNorm(width, place.norm_eps, form=place.form) for width in widths
            )
        if options.rotary != "none":
            self.rotary = Rotary(self.d_head, base=options.rotary_base, pairs=options.rotary)

    def forward(
        self,
        x: Float[Tensor, "batch seq d_model"],
        state: State | None = None,
        look: Look = UNWATCHED,
    ) -> Output:
        """Mix tokens with those before them."""
        batch, seq, _ = x.shape
        query, key, value = self._heads(x)
        old = self.initial_state(batch, value.dtype, x.device) if state is None else state
        old_keys, old_values, num_tokens = old
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self._normed(query, self.query_norm), self._normed(key, self.key_norm)
        if self.rotary is not None:
            positions = positions_after(None if state is None else num_tokens, seq, x.device)
            query, key = self.rotary(query, key, positions)
        dtype = value.dtype
        query, key, value = (part.to(dtype).transpose(1, 2) for part in (query, key, value))
        if old_keys.shape[2]:
            key = torch.cat([old_keys.to(dtype), key], dim=2)
            value = torch.cat([old_values.to(dtype), value], dim=2)
        update = self._projected(self._read(query, key, value, look), x)
        return Output(update, AttentionState(*self._kept(key, value), num_tokens + seq))

    def context_off(
        self, x: Float[Tensor, "batch seq d_model"]
    ) -> Float[Tensor, "batch seq d_model"]:
        """The update when each token reads its own value."""
        value = self._heads(x)[2]
        return self._projected(self._for_queries(value, dim=2), x)

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> AttentionState:
        """No keys and no values; they grow with the tokens, up to the window."""
        empty = torch.zeros(batch, self.num_kv_heads, 0, self.d_head, dtype=dtype, device=device)
        return AttentionState(empty, empty, torch.zeros(batch, dtype=torch.int64, device=device))

    def cost(self, prefix_tokens: int) -> Cost:
        """A token is compared with every token it sees, and reads all of their values."""
        seen = prefix_tokens + 1 if self.window is None else min(prefix_tokens + 1, self.window)
        kept = prefix_tokens if self.window is None else min(prefix_tokens, self.window - 1)
        d_kv = self.num_kv_heads * self.d_head
        count_bytes = 8  # the number of tokens, int64
        return Cost(
            projection_macs=sum(one.numel() for one in self.parameters() if one.ndim >= 2),
            recurrence_macs=2 * self.num_heads * self.d_head * seen,
            state_bytes=2 * 4 * d_kv * kept + count_bytes,
        )

    def forms(self) -> dict[str, Form]:
        """Torch chooses its own kernel."""
        return {"attention": "torch"}

    def points(self) -> dict[str, Axes]:
        """How much of each key's value a query reads."""
        return {"weights": ("window", "head", "query", "key")}

    def _heads(
        self, x: Tensor
    ) -> tuple[
        Float[Tensor, "batch seq heads d_head"],
        Float[Tensor, "batch seq kv_heads d_head"],
        Float[Tensor, "batch seq kv_heads d_head"],
    ]:
        heads = self.qkv_proj(x).unflatten(-1, (-1, self.d_head))
        query, key, value = heads.split(
            [self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=2
        )
        return query, key, value

    def _normed(self, heads: Tensor, norm: RMSNorm) -> Tensor:
        if not self.norms_all_heads:
            return norm(heads)
        return norm(heads.flatten(2)).unflatten(-1, (-1, self.d_head))

    def _read(
        self,
        query: Float[Tensor, "batch heads seq d_head"],
        key: Float[Tensor, "batch kv_heads num_keys d_head"],
        value: Float[Tensor, "batch kv_heads num_keys d_head"],
        look: Look,
    ) -> Read:
        """What each token reads; `key` and `value` also hold the tokens before the first query."""
        seq, num_keys = query.shape[2], key.shape[2]
        fits = self.window is None or num_keys <= self.window
        is_causal = fits and seq == num_keys and seq > 1
        mask = None if is_causal or (fits and seq == 1) else self._mask(seq, num_keys, key.device)
        read = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=is_causal,
            enable_gqa=self.num_kv_heads != self.num_heads,
        )
        if look.sees("weights"):
            weights = self._weights(query, key)
            replaced = look("weights", weights)
            if replaced is not weights:
                read = replaced.to(value.dtype) @ self._for_queries(value, dim=1)
        return read.transpose(1, 2)

    def _weights(
        self,
        query: Float[Tensor, "batch heads seq d_head"],
        key: Float[Tensor, "batch kv_heads num_keys d_head"],
    ) -> Float[Tensor, "batch heads seq num_keys"]:
        """The weights of the values, which torch's kernels do not return."""
        scores = query @ self._for_queries(key, dim=1).mT * self.d_head**-0.5
        sees = self._mask(query.shape[2], key.shape[2], key.device)
        return scores.masked_fill(~sees, -torch.inf).softmax(-1)

    def _for_queries(self, heads: Tensor, *, dim: int) -> Tensor:
        """Keys or values, once for each head of queries that reads them."""
        return heads.repeat_interleave(self.num_heads // self.num_kv_heads, dim)

    def _mask(self, seq: int, num_keys: int, device: torch.device) -> Tensor:
        """Whether a query, one of the last `seq` tokens, sees a key."""
        query = torch.arange(num_keys - seq, num_keys, device=device)[:, None]
        key = torch.arange(num_keys, device=device)
        sees = key <= query
        return sees if self.window is None else sees & (key > query - self.window)

    def _kept(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if self.window is None or key.shape[2] < self.window:
            return key, value
        first = key.shape[2] - self.window + 1
        return key[:, :, first:].clone(), value[:, :, first:].clone()

    def _projected(self, read: Read, x: Tensor) -> Float[Tensor, "batch seq d_model"]:
        read = read.flatten(2)
        if self.gate_proj is not None:
            read = read * self.gate_proj(x).sigmoid()
        return self.output_proj(read)
