"""Linear attention: one rule behind DeltaNet, KDA, GLA, RetNet, Mamba2 and their relatives.

Per head, with key k, query q, value v, erase key e and, for each channel of the keys, log decay
g <= 0, a state S (d_key x d_value) decays, is corrected, and is read at every token:

    S <- diag(exp g) S        S <- S + k (v - S^T e)^T        o = S^T q

Two switches choose a member of the family: how S decays (not at all, by one number for a head, by
one for each channel of its keys), and whether a token erases (e is given) or only adds (it is not).
`docs/operator.md` has the table of members. Normalising, scaling and gating is the caller's work.

The state and all sums are float32, or float64 when any input is; the output has the type of
`value`. The forms `definition` and `torch` have all derivatives; `native` and `fla` have gradients
and reject the others. `fla` has kernels without an erase key, or with a write strength in its
place. A number that is not finite reaches its own and later tokens only, in form `fla` its chunk of
64 too. A log decay of -inf forgets.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from mixerloop.config import Form, FormChoice
from mixerloop.ops.chunked_linear_attention import chunked_linear_attention
from mixerloop.ops.fla import fla_linear_attention
from mixerloop.ops.gated_delta_rule import choose_form, form_of_rule, gated_delta_rule
from mixerloop.ops.native import BoundCall, native_linear_attention, run_directly
from mixerloop.ops.recurrent import recurrent_linear_attention
from mixerloop.ops.rule_call import check_tensor, check_tensors, run_form

_FORMS: dict[Form, Callable[..., tuple[Tensor, Tensor]]] = {
    "definition": recurrent_linear_attention,
    "torch": chunked_linear_attention,
    "native": native_linear_attention,
    "fla": fla_linear_attention,
}
ERASE_OR_WRITE = "give an erase key or a write strength, not both"


def linear_attention(
    *,
    query: Float[Tensor, "batch seq heads d_key"],
    key: Float[Tensor, "batch seq heads d_key"],
    value: Float[Tensor, "batch seq heads d_value"],
    log_decay: Float[Tensor, "batch seq heads *d_key"] | None = None,
    erase_key: Float[Tensor, "batch seq heads d_key"] | None = None,
    write_strength: Float[Tensor, "batch seq heads"] | None = None,
    initial_state: Float[Tensor, "batch heads d_key d_value"] | None = None,
    form: FormChoice = "auto",
) -> tuple[Float[Tensor, "batch seq heads d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """Run the rule over a sequence; returns the outputs and the state after the last token.

    `log_decay` has a number for each head, or for each channel of its keys; without it nothing
    decays. Without `erase_key` a token only adds. A `write_strength` b in place of the erase key
    stands for the erase key b k and the value b v, and saves making them.
    """
    if erase_key is not None and write_strength is not None:
        raise ValueError(ERASE_OR_WRITE)
    if form in ("auto", "native"):
        done = run_directly(query, key, value, log_decay, erase_key, write_strength, initial_state)
        if done is not None:
            return done
    optional = {"log_decay": log_decay, "erase_key": erase_key, "initial_state": initial_state}
    check_tensors(query=query, key=key, value=value, optional=optional)
    if write_strength is not None:
        check_tensor("write_strength", write_strength)
        if log_decay is None:
            log_decay = key.new_zeros(key.shape[:3], dtype=write_strength.dtype)
        return gated_delta_rule(
            query=query,
            key=key,
            value=value,
            log_decay=log_decay,
            write_strength=write_strength,
            initial_state=initial_state,
            form=form,
        )
    chosen = choose_form(form, value.device.type)
    if form == "auto":
        erase = "none" if erase_key is None else "given"
        chosen = form_of_rule(chosen, erase, key.shape[-1])
    return run_form(
        _FORMS[chosen],
        chosen,
        query=query,
        key=key,
        value=value,
        log_decay=log_decay,
        erase_key=erase_key,
        initial_state=initial_state,
    )


def bind_linear_attention(
    *,
    query: Float[Tensor, "batch seq heads d_key"],
    key: Float[Tensor, "batch seq heads d_key"],
    value: Float[Tensor, "batch seq heads d_value"],
    log_decay: Float[Tensor, "batch seq heads *d_key"] | None = None,
    erase_key: Float[Tensor, "batch seq heads d_key"] | None = None,
    write_strength: Float[Tensor, "batch seq heads"] | None = None,
    initial_state: Float[Tensor, "batch heads d_key d_value"] | None = None,
    in_place: bool = False,
) -> BoundCall:
    """The rule in its native form on tensors that stay where they are, for decoding.

    With `in_place` the final state overwrites the initial state.
    """
    if erase_key is not None and write_strength is not None:
        raise ValueError(ERASE_OR_WRITE)
    optional = {"log_decay": log_decay, "erase_key": erase_key, "initial_state": initial_state}
    optional["write_strength"] = write_strength
    check_tensors(query=query, key=key, value=value, optional=optional)
    if in_place and initial_state is None:
        raise ValueError("in_place needs an initial state to overwrite")
    return BoundCall(
        *(query, key, value, log_decay, erase_key, write_strength, initial_state),
        in_place=in_place,
    )
