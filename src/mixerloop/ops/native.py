"""Linear attention in C++: the chunk equations with all data of a head in cache.

Two operators registered with torch, so that autograd, `torch.compile` and fake tensors know them.
The forward keeps the state of every 64th token; the backward runs the tokens between again. There
are gradients and no other derivatives. The gated delta rule is the same operator, with a write
strength in place of an erase key.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from mixerloop.ops import native_library
from mixerloop.ops.derivatives import GradientOnly
from mixerloop.ops.native_library import GROUP_TOKENS, OPERATORS, TYPES

_FORWARD, _LAYOUT = OPERATORS.index("rule"), native_library.CALLS["rule"]
_TYPE_NUMBERS = {dtype: number for number, dtype in enumerate(TYPES)}
_WIDE = {dtype: torch.promote_types(dtype, torch.float32) for dtype in TYPES}
_OPTIONAL = ("log_decay", "erase_key", "write_strength", "initial_state")
_ALL = ("query", "key", "value", *_OPTIONAL)
SMALL = 2**17
"""Numbers in all states, times tokens, below which a second thread costs more than it saves."""


def native_linear_attention(
    *,
    query: Float[Tensor, "batch seq heads d_key"],
    key: Float[Tensor, "batch seq heads d_key"],
    value: Float[Tensor, "batch seq heads d_value"],
    log_decay: Float[Tensor, "batch seq heads *d_key"] | None = None,
    erase_key: Float[Tensor, "batch seq heads d_key"] | None = None,
    write_strength: Float[Tensor, "batch seq heads"] | None = None,
    initial_state: Float[Tensor, "batch heads d_key d_value"] | None = None,
) -> tuple[Float[Tensor, "batch seq heads d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """The rule in float32, or float64 when all inputs are float64.

    Query, key, value and erase key have the same type, which may be bfloat16; the rest is never
    narrower than float32. The output has the type of `value`. There is an erase key, or a write
    strength b, with which the erase key is b times the key and the value b times `value`.
    """
    inputs = (query, key, value, log_decay, erase_key, write_strength, initial_state)
    given = [tensor for tensor in inputs if tensor is not None]
    _derivatives(write_strength).check(*given)
    output, final_state, _ = _forward(*inputs, native_library.keeps_states(*given))
    return output, final_state


def _derivatives(write_strength: Tensor | None) -> GradientOnly:
    operator = "linear_attention" if write_strength is None else "gated_delta_rule"
    return GradientOnly(operator, "native", instead="form torch or definition")


def run_directly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    erase_key: Tensor | None,
    write_strength: Tensor | None,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor] | None:
    """The rule without torch's dispatcher, where all inputs are plain and fit; else None.

    For a single token, what surrounds the kernel would take far longer than the kernel. So this is
    one pass over the inputs, and anything out of the ordinary is left to the long way round.
    """
    try:
        call = _packed(query, key, value, log_decay, erase_key, write_strength, initial_state)
    except AttributeError:  # an argument is no tensor, which the long way round names
        return None
    if call is None:
        return None
    packed, dtype_number, num_threads, output, final_state = call
    native_library.start(_FORWARD, dtype_number, packed, num_threads)
    return output, final_state


class BoundCall:
    """The rule on tensors that stay where they are, to be run again and again.

    A decoder that writes each token's query, key and value into the same tensors saves what a call
    with new tensors costs. `run` reads the inputs anew and overwrites `output` and `final_state`,
    which autograd does not notice. If `final_state` is the initial state too, each run continues
    from the one before.
    """

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, *others: Tensor | None, in_place: bool
    ) -> None:
        call = _packed(query, key, value, *others, in_place=in_place)
        if call is None:
            raise ValueError(
                "a bound call needs contiguous tensors that fit together, on a CPU and without "
                "gradients: all float32 or float64, or tokens in bfloat16 and the rest in float32"
            )
        given = (query, key, value, *others)
        self._memory = [x.untyped_storage() for x in given if x is not None]  # stays alive
        self._packed, self._dtype_number, self._num_threads, self.output, self.final_state = call

    def run(self) -> None:
        """Compute `output` and `final_state` from what the inputs hold now."""
        native_library.start(_FORWARD, self._dtype_number, self._packed, self._num_threads)


def _packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    erase_key: Tensor | None,
    write_strength: Tensor | None,
    initial_state: Tensor | None,
    in_place: bool = False,
) -> tuple[bytes, int, int, Tensor, Tensor] | None:
    """A call of the kernel, its type, threads and results; None if the inputs do not suit it."""
    dtype, shape = value.dtype, key.shape
    wide = _WIDE.get(dtype)
    if wide is None or len(shape) != 4 or value.ndim != 4 or native_library.library() is None:
        return None
    batch, seq, heads, d_key = shape
    d_value = value.shape[-1]
    of_head, of_state = (batch, seq, heads), (batch, heads, d_key, d_value)
    expected = [
        (query, dtype, shape),
        (key, dtype, shape),
        (value, dtype, (batch, seq, heads, d_value)),
    ]
    by_channel = False
    if log_decay is not None:
        by_channel = log_decay.ndim == 4
        expected.append((log_decay, wide, shape if by_channel else of_head))
    if erase_key is not None:
        expected.append((erase_key, dtype, shape))
    if write_strength is not None:
        expected.append((write_strength, wide, of_head))
    if initial_state is not None:
        expected.append((initial_state, wide, of_state))
    for tensor, its_dtype, its_shape in expected:
        if tensor.dtype is not its_dtype or tensor.shape != its_shape or not tensor.is_contiguous():
            return None
    if seq == 0 or not native_library.goes_past_dispatcher(*[x for x, _, _ in expected]):
        return None
    output = torch.empty_like(value)
    if initial_state is None:
        final_state = value.new_empty(of_state, dtype=wide)
    else:
        final_state = initial_state if in_place else torch.empty_like(initial_state)
    packed = _LAYOUT.pack(
        *(batch, seq, heads, d_key, d_value, by_channel),
        *(query.data_ptr(), key.data_ptr(), value.data_ptr()),
        0 if log_decay is None else log_decay.data_ptr(),
        0 if erase_key is None else erase_key.data_ptr(),
        0 if write_strength is None else write_strength.data_ptr(),
        0 if initial_state is None else initial_state.data_ptr(),
        *(output.data_ptr(), final_state.data_ptr(), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    )
    is_small = batch * seq * heads * d_key * d_value < SMALL
    num_threads = 1 if is_small else torch.get_num_threads()
    return packed, _TYPE_NUMBERS[dtype], num_threads, output, final_state


@torch.library.custom_op("mixerloop::linear_attention", mutates_args=(), device_types="cpu")
def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    erase_key: Tensor | None,
    write_strength: Tensor | None,
    initial_state: Tensor | None,
    keep_states: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    output, final_state, states = _empty_results(key, value, keep_states)
    optional = (log_decay, erase_key, write_strength, initial_state)
    native_library.run(
        "rule",
        value.dtype,
        *_sizes(key, value, log_decay),
        reads=_named(query, key, value, optional),
        writes={"output": output, "final_state": final_state}
        | ({"states": states} if keep_states else {}),
    )
    return output, final_state, states


@_forward.register_fake
def _(query, key, value, log_decay, erase_key, write_strength, initial_state, keep_states):
    return _empty_results(key, value, keep_states)


@torch.library.custom_op(
    "mixerloop::linear_attention_backward", mutates_args=(), device_types="cpu"
)
def _backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    erase_key: Tensor | None,
    write_strength: Tensor | None,
    states: Tensor,
    d_output: Tensor,
    d_final_state: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients in the order of the forward's arguments, empty where an argument was left out."""
    assert states.shape[2] == _num_groups(key)
    reads = _named(query, key, value, (log_decay, erase_key, write_strength, None))
    results = _empty_gradients(
        query, key, value, log_decay, erase_key, write_strength, d_final_state
    )
    named = {f"d_{name}": x for name, x in zip(_ALL, results, strict=True) if x.numel() > 0}
    native_library.run(
        "rule",
        value.dtype,
        *_sizes(key, value, log_decay),
        backward=True,
        reads=reads | {"states": states, "d_output": d_output, "d_final_state": d_final_state},
        writes=named,
    )
    return results


@_backward.register_fake
def _(query, key, value, log_decay, erase_key, write_strength, states, d_output, d_final_state):
    return _empty_gradients(query, key, value, log_decay, erase_key, write_strength, d_final_state)


def _keep(ctx, inputs, output) -> None:
    *tokens, initial_state, _ = inputs
    ctx.has_initial_state = initial_state is not None
    ctx.save_for_backward(*tokens, output[2])


def _gradients(ctx, d_output, d_final_state, _d_states):
    *tokens, states = ctx.saved_tensors
    _derivatives(tokens[-1]).check(d_output, d_final_state)
    gradients = _backward(*tokens, states, d_output, d_final_state)
    present = [*(tensor is not None for tensor in tokens), ctx.has_initial_state]
    return *(x if there else None for x, there in zip(gradients, present, strict=True)), None


def _name_operator(ctx, inputs, output) -> None:
    ctx.derivatives = _derivatives(inputs[5])


def _refuse_second(ctx, *_) -> None:
    ctx.derivatives.refuse_second()


_forward.register_autograd(_gradients, setup_context=_keep)
_backward.register_autograd(_refuse_second, setup_context=_name_operator)


def _named(
    query: Tensor, key: Tensor, value: Tensor, optional: tuple[Tensor | None, ...]
) -> dict[str, Tensor]:
    present = {
        name: tensor for name, tensor in zip(_OPTIONAL, optional, strict=True) if tensor is not None
    }
    return {"query": query, "key": key, "value": value, **present}


def _sizes(key: Tensor, value: Tensor, log_decay: Tensor | None) -> tuple[int, ...]:
    by_channel = log_decay is not None and log_decay.ndim == 4
    return *key.shape, value.shape[-1], by_channel


def _num_groups(key: Tensor) -> int:
    return -(-key.shape[1] // GROUP_TOKENS)


def _empty_results(key: Tensor, value: Tensor, keep_states: bool) -> tuple[Tensor, Tensor, Tensor]:
    batch, _, heads, d_key = key.shape
    wide = torch.promote_types(value.dtype, torch.float32)
    state = (batch, heads, d_key, value.shape[-1])
    kept = (batch, heads, _num_groups(key) if keep_states else 0, d_key, value.shape[-1])
    return _empty(value), value.new_empty(state, dtype=wide), value.new_empty(kept, dtype=wide)


def _empty_gradients(
    query: Tensor, *others: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    d_key, d_value, d_log_decay, d_erase_key, d_write_strength, d_state = (
        query.new_empty(0) if tensor is None else _empty(tensor) for tensor in others
    )
    return _empty(query), d_key, d_value, d_log_decay, d_erase_key, d_write_strength, d_state


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)
