"""The gated delta rule: one signature, several forms.

Per head, with key k, query q, value v, write strength b in [0, 2] and log decay g <= 0, a state S
(d_key x d_value) is read, corrected and read again at every token:

    S <- exp(g) S + k (b (v - exp(g) S^T k))^T        o = S^T q

A log decay for each channel of the keys, as in Kimi delta attention, scales the rows of S. This is
the member of `linear_attention` that erases with its own key: e = b k, and values b v.

Normalising and scaling query and key is the caller's work. The state and all sums are float32, or
float64 when any input is; the output has the type of `value`.

All derivatives of the forms `definition` and `torch` are right; `native` and `fla` have gradients
and reject the others. A number that is not finite reaches its own and later tokens: in the forms
`torch` (on a CPU) and `native`, outputs and gradients are finite where those of the definition are;
in the form `fla` it reaches its whole chunk.
A log decay of -inf forgets the state, and everything stays finite. One limit is the definition's
own: if the loss is of earlier tokens only and a later query, key, log decay or write strength is
not finite, then the gradients of the earlier tokens are NaN, except those of their queries, because
0 times NaN is NaN. A later value that is not finite does no such harm.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from mixerloop.config import Form, FormChoice
from mixerloop.ops import fla, native_library
from mixerloop.ops.chunked import chunked_gated_delta_rule
from mixerloop.ops.chunked_linear_attention import chunked_linear_attention
from mixerloop.ops.fla import fla_gated_delta_rule
from mixerloop.ops.native import native_linear_attention, run_directly
from mixerloop.ops.recurrent import recurrent_gated_delta_rule, recurrent_linear_attention
from mixerloop.ops.rule_call import check_tensors, run_form
from mixerloop.parsing import one_of

HAVE_NATIVE = (None, "cpu", "meta")
"""Devices of the compiled kernels; on `meta` they give shapes."""


def choose_form(choice: FormChoice, device_type: str | None = None) -> Form:
    """The form a run will use from its first token to its last; `auto` is the fastest.

    Without a device type only the installed packages are checked, and `auto` is for a CPU. In code
    that is compiled a form was checked when its model was made; a search would break the graph.
    """
    chosen = one_of(FormChoice, choice, "form")
    if chosen != "auto" and torch.compiler.is_compiling():
        return chosen
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


def form_of_rule(form: Form, erase: fla.Erase, d_key: int) -> Form:
    """The form in which a rule with such keys runs in a model of this form, or under `auto`."""
    return "torch" if form == "fla" and fla.missing_kernel(erase, d_key) is not None else form


Rule = Callable[..., tuple[Tensor, Tensor]]


def _by_head_or_channel(by_head: Rule, by_channel: Rule) -> Rule:
    """The first rule; where channels decay, the second with erase keys b k and values b v."""

    def run(*, key: Tensor, value: Tensor, log_decay: Tensor, write_strength: Tensor, **others):
        if log_decay.ndim == 3:
            return by_head(
                key=key, value=value, log_decay=log_decay, write_strength=write_strength, **others
            )
        strength = write_strength[..., None]
        return by_channel(
            key=key, value=strength * value, log_decay=log_decay, erase_key=strength * key, **others
        )

    return run


_FORMS: dict[Form, Rule] = {
    "definition": _by_head_or_channel(recurrent_gated_delta_rule, recurrent_linear_attention),
    "torch": _by_head_or_channel(chunked_gated_delta_rule, chunked_linear_attention),
    "native": native_linear_attention,
    "fla": fla_gated_delta_rule,
}


def gated_delta_rule(
    *,
    query: Float[Tensor, "batch seq heads d_key"],
    key: Float[Tensor, "batch seq heads d_key"],
    value: Float[Tensor, "batch seq heads d_value"],
    log_decay: Float[Tensor, "batch seq heads *d_key"],
    write_strength: Float[Tensor, "batch seq heads"],
    initial_state: Float[Tensor, "batch heads d_key d_value"] | None = None,
    form: FormChoice = "auto",
) -> tuple[Float[Tensor, "batch seq heads d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """Run the rule over a sequence; returns the outputs and the state after the last token."""
    if form in ("auto", "native") and log_decay is not None and write_strength is not None:
        done = run_directly(query, key, value, log_decay, None, write_strength, initial_state)
        if done is not None:
            return done
    check_tensors(
        query=query,
        key=key,
        value=value,
        log_decay=log_decay,
        write_strength=write_strength,
        optional={"initial_state": initial_state},
    )
    chosen = choose_form(form, value.device.type)
    if form == "auto":
        chosen = form_of_rule(chosen, "own", key.shape[-1])
    return run_form(
        _FORMS[chosen],
        chosen,
        query=query,
        key=key,
        value=value,
        log_decay=log_decay,
        write_strength=write_strength,
        initial_state=initial_state,
    )
