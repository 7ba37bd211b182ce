"""Linear attention: one rule behind DeltaNet, KDA, GLA, RetNet, Mamba2 and their relatives.

Per head, with key k, query q, value v, log decay g <= 0 of each key channel and erase key e, a state
S (d_key x d_value) forgets, is corrected, and is read at every token:

    S <- diag(exp g) S        S <- S + k (v - S^T e)^T        o = S^T q

Two switches choose a member of the family: how S decays (not at all, by one number for a head, by
one for each channel of its keys), and whether a token erases (e is given) or only adds (it is not).
`docs/operator.md` has the table of members. Normalising, scaling and gating is the caller's work.

The state and all sums are float32, or float64 when any input is; the output has the type of `value`.
The forms `definition` and `torch` have all derivatives; `native` and `fla` have gradients and reject
the others. A number that is not finite reaches its own and later tokens only, and a log decay of
-inf forgets; see `gated_delta_rule.py`, which is this rule with e = b k and values b v.
"""

from collections.abc import Callable
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from mixerloop.config import Form, FormChoice
from mixerloop.ops.chunked_linear_attention import chunked_linear_attention
from mixerloop.ops.gated_delta_rule import choose_form
from mixerloop.ops.recurrent import recurrent_linear_attention

_FORMS: dict[Form, Callable[..., tuple[Tensor, Tensor]]] = {
    "definition": recurrent_linear_attention,
    "torch": chunked_linear_attention,
    "native": chunked_linear_attention,
}


def linear_attention(
    *,
    query: Float[Tensor, "batch seq heads d_key"],
    key: Float[Tensor, "batch seq heads d_key"],
    value: Float[Tensor, "batch seq heads d_value"],
    log_decay: Float[Tensor, "batch seq heads *d_key"] | None = None,
    erase_key: Float[Tensor, "batch seq heads d_key"] | None = None,
    initial_state: Float[Tensor, "batch heads d_key d_value"] | None = None,
    form: FormChoice = "auto",
) -> tuple[Float[Tensor, "batch seq heads d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """Run the rule over a sequence; returns the outputs and the state after the last token.

    `log_decay` has a number for each head, or for each channel of its keys; without it nothing
    decays. Without `erase_key` a token only adds.
    """
    given = {
        "query": query,
        "key": key,
        "value": value,
        "log_decay": log_decay,
        "erase_key": erase_key,
        "initial_state": initial_state,
    }
    present = {name: tensor for name, tensor in given.items() if tensor is not None}
    _check(present)
    state_dtype = reduce(
        torch.promote_types, (tensor.dtype for tensor in present.values()), torch.float32
    )
    if initial_state is None:
        batch, _, heads, d_key = key.shape
        initial_state = value.new_zeros(batch, heads, d_key, value.shape[-1], dtype=state_dtype)
    chosen = choose_form(form, value.device.type)
    tokens = [tensor for tensor in (query, key, value, erase_key) if tensor is not None]
    narrow = chosen in ("native", "fla") and {x.dtype for x in tokens} == {torch.bfloat16}
    token_dtype = torch.bfloat16 if narrow and state_dtype == torch.float32 else state_dtype
    with torch.autocast(value.device.type, enabled=False):
        output, final_state = _FORMS[chosen](
            query=query.to(token_dtype),
            key=key.to(token_dtype),
            value=value.to(token_dtype),
            log_decay=None if log_decay is None else log_decay.to(state_dtype),
            erase_key=None if erase_key is None else erase_key.to(token_dtype),
            initial_state=initial_state.to(state_dtype),
        )
    return output.to(value.dtype), final_state


def _check(present: dict[str, Tensor]) -> None:
    """Reject tensors whose shapes or types do not fit together, by name."""
    for name, tensor in present.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {tensor.dtype}")
    key, value = present["key"], present["value"]
    if key.ndim != 4 or value.ndim != 4:
        raise ValueError("key and value must have the shape [batch, seq, heads, width]")
    batch, seq, heads, d_key = key.shape
    if seq == 0:
        raise ValueError("the sequence is empty")
    expected = {
        "query": [(batch, seq, heads, d_key)],
        "value": [(batch, seq, heads, value.shape[-1])],
        "log_decay": [(batch, seq, heads), (batch, seq, heads, d_key)],
        "erase_key": [(batch, seq, heads, d_key)],
        "initial_state": [(batch, heads, d_key, value.shape[-1])],
    }
    for name, shapes in expected.items():
        if name in present and tuple(present[name].shape) not in shapes:
            got, wanted = tuple(present[name].shape), " or ".join(map(str, shapes))
            raise ValueError(f"{name} must have the shape {wanted} to fit key and value, got {got}")
