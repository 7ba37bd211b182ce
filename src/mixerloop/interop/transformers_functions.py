"""The functions of `transformers` for linear attention, computed by our operators on a CPU.

A function here has the parameters of the function that it stands for, and returns the same: the
same scaling, norms, layouts and types. `chunk_size` is ignored, as it changes rounding only. All
sums are float32, also under autocast. A function returns None for a call that our operators do not
cover, and the caller then runs the original:

- a tensor that is empty, of a subclass or not on a CPU, or heads that only fit by broadcasting;
- packed sequences (`cu_seqlens`, `seq_idx`) and the other keywords of `OTHER_KERNELS_KNOW`;
- inside `torch.export`, forward mode and the transforms of `torch.func`.

The originals have second derivatives. The native form of our operators raises an error for them.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from mixerloop.ops import derivatives
from mixerloop.ops.gated_delta_rule import gated_delta_rule
from mixerloop.ops.linear_attention import linear_attention
from mixerloop.ops.native_library import PLAIN

OTHER_KERNELS_KNOW = frozenset(
    (
        *("A_log", "allow_neg_eigval", "chunk_indices", "cp_context", "cu_seqlens"),
        *("cu_seqlens_cpu", "dt_bias", "gk", "gv", "head_first", "lower_bound"),
        *("return_intermediate_states", "return_varlen_states", "safe_gate", "scale"),
        *("seq_idx", "state_v_first", "transpose_state_layout", "use_beta_sigmoid_in_kernel"),
        *("use_gate_in_kernel", "z"),
    )
)
"""Keywords of flash-linear-attention and mamba-ssm that the torch functions do not have.

`transformers` drops every other keyword, such as those that its Trainer passes to a model.
"""
EPSILON = 1e-6  # under the root of the unit norms

Result = tuple[Tensor, Tensor | None] | None


def torch_chunk_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> Result:
    """Gated DeltaNet: a decay for each head."""
    return torch_recurrent_gated_delta_rule(
        query,
        key,
        value,
        g,
        beta,
        initial_state,
        output_final_state,
        use_qk_l2norm_in_kernel,
        **kwargs,
    )


def torch_recurrent_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> Result:
    """The same rule, which `transformers` calls for a single token with a cache."""
    if not _covers_rule(query, key, value, (g, key.shape[:3]), beta, initial_state, kwargs):
        return None
    output, final_state = _delta_rule(
        query, key, value, g, beta, initial_state, normalise=use_qk_l2norm_in_kernel
    )
    return output, final_state if output_final_state else None


def chunk_kimi_delta_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> Result:
    """Kimi delta attention: a decay for each channel of the keys."""
    return recurrent_kimi_delta_attention(
        query,
        key,
        value,
        g,
        beta,
        initial_state,
        output_final_state,
        use_qk_l2norm_in_kernel,
        **kwargs,
    )


def recurrent_kimi_delta_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None,
    output_final_state: bool,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> Result:
    """The same rule, which `transformers` calls for a single token with a cache."""
    if not _covers_rule(query, key, value, (g, key.shape), beta, initial_state, kwargs):
        return None
    output, final_state = _delta_rule(
        query, key, value, g, beta, initial_state, normalise=use_qk_l2norm_in_kernel
    )
    return output, final_state if output_final_state else None


def mamba2_chunk_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    chunk_size: int,
    D: Tensor | None = None,  # noqa: N803
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **kwargs: Any,
) -> Tensor | tuple[Tensor, Tensor] | None:
    """Mamba2: C is the query, B the key, both shared by a group of heads; nothing is erased.

    A state has the values first: [batch, heads, d_value, d_key].
    """
    batch, seq, heads, d_value = hidden_states.shape
    groups, d_key = B.shape[2:]
    expected = [
        (hidden_states, hidden_states.shape),
        (dt, (batch, seq, heads)),
        (A, (heads,)),
        (B, (batch, seq, groups, d_key)),
        (C, B.shape),
        (D, (heads,)),
        (dt_bias, (heads,)),
        (initial_states, (batch, heads, d_value, d_key)),
    ]
    if not _covers(expected, kwargs) or heads % groups:
        return None
    if dt_bias is not None:
        dt = dt + dt_bias.to(dt.dtype)
    if dt_softplus:
        dt = F.softplus(dt)
    step = dt.clamp(*dt_limit).float()
    wide = hidden_states.float()
    output, final_state = linear_attention(
        query=_for_each_head(C.float(), heads),
        key=_for_each_head(B.float(), heads),
        value=wide * step[..., None],
        log_decay=A.float() * step,
        initial_state=None if initial_states is None else initial_states.float().mT,
    )
    if D is not None:
        output = output + D[..., None] * wide
    output = output.contiguous()
    return (output, final_state.mT.contiguous()) if return_final_states else output


def _delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None,
    *,
    normalise: bool,
) -> tuple[Tensor, Tensor]:
    scaled, unit_key = _scaled_query_and_key(query, key, normalise=normalise)
    output, final_state = gated_delta_rule(
        query=scaled,
        key=unit_key,
        value=value.float(),
        log_decay=g.float(),
        write_strength=beta.float(),
        initial_state=None if initial_state is None else initial_state.float(),
    )
    return output.to(query.dtype), final_state


def _covers_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: tuple[Tensor, tuple[int, ...]],
    beta: Tensor,
    initial_state: Tensor | None,
    kwargs: dict[str, Any],
) -> bool:
    """Whether our operators cover a call of a delta rule; `decay` comes with its shape."""
    if key.ndim != 4 or value.ndim != 4:
        return False
    batch, seq, heads, d_key = key.shape
    d_value = value.shape[-1]
    expected = [
        (key, key.shape),
        (query, key.shape),
        (value, (batch, seq, heads, d_value)),
        decay,
        (beta, (batch, seq, heads)),
        (initial_state, (batch, heads, d_key, d_value)),
    ]
    return _covers(expected, kwargs)


def _covers(expected: list[tuple[Tensor | None, tuple[int, ...]]], kwargs: dict[str, Any]) -> bool:
    """Whether tensors are on a CPU in their expected shapes, and nothing else is asked for."""
    wanted = (kwargs[name] for name in OTHER_KERNELS_KNOW.intersection(kwargs))
    return (
        all(value is None or value is False for value in wanted)
        and not torch.compiler.is_exporting()
        and not derivatives.transforms_are_active()
        and all(
            tensor is None or (_is_known(tensor) and tensor.shape == shape and 0 not in shape)
            for tensor, shape in expected
        )
    )


def _is_known(tensor: Tensor) -> bool:
    """Whether a tensor is in a CPU's memory, or stands for such a tensor while torch compiles."""
    return tensor.device.type == "cpu" and type(tensor) in (*PLAIN, FakeTensor)


def _scaled_query_and_key(query: Tensor, key: Tensor, *, normalise: bool) -> tuple[Tensor, Tensor]:
    query, key = query.float(), key.float()
    if normalise:
        query, key = _unit(query), _unit(key)
    return query * query.shape[-1] ** -0.5, key


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + EPSILON)


def _for_each_head(x: Tensor, heads: int) -> Tensor:
    """Repeat [batch, seq, groups, d_key] over the heads of each group; one group is not copied."""
    return x[:, :, :, None].expand(-1, -1, -1, heads // x.shape[2], -1).flatten(2, 3)
