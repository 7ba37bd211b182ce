"""The gated delta rule: one signature, several forms.

Per head, with key k, query q, value v, write strength b in [0, 2] and log decay g <= 0, a state S
(d_key x d_value) is read, corrected and read again at every token:

    S <- exp(g) S + k (b (v - exp(g) S^T k))^T        o = S^T q

Normalising and scaling query and key is the caller's work. The state and all sums are float32, or
float64 when any input is; the output has the type of `value`.

All derivatives of the forms `definition` and `torch` are right; `native` and `fla` have gradients
and reject the others. A number that is not finite reaches its own and later tokens: in the forms
`torch` (on a CPU) and `native`, outputs and gradients are finite where those of the definition are.
A log decay of -inf forgets the state, and everything stays finite. One limit is the definition's
own: if the loss is of earlier tokens only and a later query, key, log decay or write strength is
not finite, then the gradients of the earlier tokens are NaN, except those of their queries, because
0 times NaN is NaN. A later value that is not finite does no such harm.
"""

from collections.abc import Callable
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from mixerloop.config import Form, FormChoice
from mixerloop.ops import fla, native_library
from mixerloop.ops.chunked import chunked_gated_delta_rule
from mixerloop.ops.fla import fla_gated_delta_rule
from mixerloop.ops.native import native_gated_delta_rule
from mixerloop.ops.recurrent import recurrent_gated_delta_rule
from mixerloop.parsing import one_of

_FORMS: dict[Form, Callable[..., tuple[Tensor, Tensor]]] = {
    "definition": recurrent_gated_delta_rule,
    "torch": chunked_gated_delta_rule,
    "native": native_gated_delta_rule,
    "fla": fla_gated_delta_rule,
}
HAVE_NATIVE = (None, "cpu", "meta")
"""Devices of the compiled kernels; on `meta` they give shapes."""


def choose_form(choice: FormChoice, device_type: str | None = None) -> Form:
    """The form a run will use from its first token to its last; `auto` is the fastest.

    Without a device type only the installed packages are checked, and `auto` is for a CPU.
    """
    chosen = one_of(FormChoice, choice, "form")
    compiled = native_library.library() is not None
    if chosen == "auto":
        if device_type == "cuda":
            return "fla" if fla.is_installed() else "torch"
        return "native" if compiled and device_type in HAVE_NATIVE else "torch"
    if chosen == "native" and not compiled:
        raise ValueError(
            "form native: this installation has no compiled kernel; install mixerloop "
            "again where there is a C++ compiler, or choose torch"
        )
    if chosen == "native" and device_type not in HAVE_NATIVE:
        raise ValueError(f"form native runs on CPUs; choose fla or torch on {device_type}")
    if chosen == "fla" and not fla.is_installed():
        raise ValueError(
            "form fla: flash-linear-attention is not installed: pip install 'mixerloop[fla]'"
        )
    if chosen == "fla" and device_type == "cpu" and not fla.is_interpreted():
        raise ValueError("form fla needs a CUDA device; choose native or torch")
    return chosen


def gated_delta_rule(
    *,
    query: Float[Tensor, "batch seq heads d_key"],
    key: Float[Tensor, "batch seq heads d_key"],
    value: Float[Tensor, "batch seq heads d_value"],
    log_decay: Float[Tensor, "batch seq heads"],
    write_strength: Float[Tensor, "batch seq heads"],
    initial_state: Float[Tensor, "batch heads d_key d_value"] | None = None,
    form: FormChoice = "auto",
) -> tuple[Float[Tensor, "batch seq heads d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """Run the rule over a sequence; returns the outputs and the state after the last token."""
    _check(
        query=query,
        key=key,
        value=value,
        log_decay=log_decay,
        write_strength=write_strength,
        initial_state=initial_state,
    )
    given = [query, key, value, log_decay, write_strength]
    if initial_state is not None:
        given.append(initial_state)
    state_dtype = reduce(torch.promote_types, (t.dtype for t in given), torch.float32)
    if initial_state is None:
        batch, _, heads, d_key = key.shape
        initial_state = value.new_zeros(batch, heads, d_key, value.shape[-1], dtype=state_dtype)
    chosen = choose_form(form, value.device.type)
    narrow = chosen in ("native", "fla") and {query.dtype, key.dtype, value.dtype} == {
        torch.bfloat16
    }
    token_dtype = torch.bfloat16 if narrow and state_dtype == torch.float32 else state_dtype
    with torch.autocast(value.device.type, enabled=False):
        output, final_state = _FORMS[chosen](
            query=query.to(token_dtype),
            key=key.to(token_dtype),
            value=value.to(token_dtype),
            log_decay=log_decay.to(state_dtype),
            write_strength=write_strength.to(state_dtype),
            initial_state=initial_state.to(state_dtype),
        )
    return output.to(value.dtype), final_state


def _check(**tensors: Tensor | None) -> None:
    """Reject tensors whose shapes or types do not fit together, by name."""
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
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
        "query": (batch, seq, heads, d_key),
        "value": (batch, seq, heads, value.shape[-1]),
        "log_decay": (batch, seq, heads),
        "write_strength": (batch, seq, heads),
        "initial_state": (batch, heads, d_key, value.shape[-1]),
    }
    for name, shape in expected.items():
        if name in present and tuple(present[name].shape) != shape:
            got = tuple(present[name].shape)
            raise ValueError(f"{name} must have the shape {shape} to fit key and value, got {got}")
