"""The Gated DeltaNet mixer: a matrix memory that is corrected at every token, and forgets."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mixerloop.config import Implementation, ImplementationChoice, ModelConfig
from mixerloop.model.norm import RMSNorm
from mixerloop.model.sublayer import Cost, MixerState
from mixerloop.ops.gated_delta_rule import choose_implementation, gated_delta_rule
from mixerloop.ops.short_convolution import short_convolution

UNIT_NORM_EPS = 1e-6  # under the root, as flash-linear-attention has it
RATE_RANGE = (0.0, 16.0)  # exp(A_log)
SMALLEST_RATE = 2.0**-20  # one step of the generator above the zero it may draw
STEP_RANGE = (0.001, 0.1)  # softplus(dt_bias)
SMALLEST_STEP = 1e-4


class GatedDeltaNetState(NamedTuple):
    """What the mixer remembers of a sequence."""

    memory: Float[Tensor, "batch heads d_key d_value"]
    conv_history: Float[Tensor, "batch width-1 channels"]


class RuleInputs(NamedTuple):
    """The token-local half of the mixer, in float32 or wider."""

    query: Float[Tensor, "batch seq heads d_head"]
    key: Float[Tensor, "batch seq heads d_head"]
    value: Float[Tensor, "batch seq heads d_head"]
    log_decay: Float[Tensor, "batch seq heads"]
    write_strength: Float[Tensor, "batch seq heads"]


class GatedDeltaNet(nn.Module):
    """Projections, short convolution, gated delta rule, gated output norm, projection."""

    def __init__(
        self, config: ModelConfig, *, implementation: ImplementationChoice = "auto"
    ) -> None:
        super().__init__()
        self.num_heads, self.d_head = config.num_heads, config.d_head
        self.implementation: Implementation = choose_implementation(implementation)
        d_inner = config.num_heads * config.d_head
        self.qkv_proj = nn.Linear(config.d_model, 3 * d_inner, bias=False)
        self.qkv_conv = nn.Parameter(torch.empty(3 * d_inner, config.conv_width))
        self.decay_proj = nn.Linear(config.d_model, config.num_heads, bias=False)
        self.write_proj = nn.Linear(config.d_model, config.num_heads, bias=False)
        self.gate_proj = nn.Linear(config.d_model, d_inner, bias=False)
        self.output_proj = nn.Linear(d_inner, config.d_model, bias=False)
        self.output_norm = RMSNorm(config.d_head, config.norm_eps)
        self.A_log = nn.Parameter(torch.empty(config.num_heads))
        self.dt_bias = nn.Parameter(torch.empty(config.num_heads))

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], state: MixerState | None = None
    ) -> tuple[Float[Tensor, "batch seq d_model"], GatedDeltaNetState]:
        """The update to the residual, and the state to go on from."""
        memory, conv_history = (None, None) if state is None else state
        qkv, conv_history = short_convolution(
            x=self.qkv_proj(x), weight=self.qkv_conv, history=conv_history
        )
        output, memory = gated_delta_rule(
            **self._rule_inputs(x, qkv)._asdict(),
            initial_state=memory,
            implementation=self.implementation,
        )
        return self._read_out(x, output), GatedDeltaNetState(memory, conv_history)

    def context_off(
        self, x: Float[Tensor, "batch seq d_model"]
    ) -> Float[Tensor, "batch seq d_model"]:
        """Each token writes to an empty memory and reads its own write: o = b (q . k) v."""
        inputs = self._rule_inputs(x, self.qkv_proj(x) * self.qkv_conv[:, -1])
        match = (inputs.query * inputs.key).sum(-1)
        return self._read_out(x, (inputs.write_strength * match)[..., None] * inputs.value)

    def initial_state(
        self, batch: int, dtype: torch.dtype, device: torch.device
    ) -> GatedDeltaNetState:
        """An empty memory and no tokens before the first."""
        wide = torch.promote_types(dtype, torch.float32)
        channels, width = self.qkv_conv.shape
        return GatedDeltaNetState(
            memory=torch.zeros(
                batch, self.num_heads, self.d_head, self.d_head, dtype=wide, device=device
            ),
            conv_history=torch.zeros(batch, width - 1, channels, dtype=dtype, device=device),
        )

    def draw(self, name: str, generator: torch.Generator) -> Tensor | None:
        """Decay rates and time steps, spread as Mamba spread them.

        In float32: a rate drawn in bfloat16 may be zero, and its head dead.
        """
        shape = (self.num_heads,)
        if name == "A_log":
            rate = torch.empty(shape).uniform_(*RATE_RANGE, generator=generator)
            return rate.clamp_(SMALLEST_RATE).log()
        if name == "dt_bias":
            low, high = (math.log(bound) for bound in STEP_RANGE)
            step = torch.empty(shape).uniform_(low, high, generator=generator).exp()
            step = step.clamp(SMALLEST_STEP)
            return step + torch.log(-torch.expm1(-step))  # softplus of this is the step
        return None

    def cost(self) -> Cost:
        """Per token and head the rule reads the memory, corrects it, and reads it again."""
        weights = (
            *(self.qkv_proj.weight, self.qkv_conv, self.decay_proj.weight),
            *(self.write_proj.weight, self.gate_proj.weight, self.output_proj.weight),
        )
        state = self.initial_state(1, torch.float32, torch.device("meta"))
        return Cost(
            projection_macs=sum(weight.numel() for weight in weights),
            recurrence_macs=3 * state.memory.numel(),
            state_bytes=sum(tensor.nbytes for tensor in state),
        )

    def _rule_inputs(self, x: Tensor, qkv: Tensor) -> RuleInputs:
        wide = torch.promote_types(qkv.dtype, torch.float32)
        query, key, value = (
            part.unflatten(-1, (self.num_heads, self.d_head))
            for part in F.silu(qkv.to(wide)).chunk(3, dim=-1)
        )
        step = F.softplus(self.decay_proj(x).to(wide) + self.dt_bias)
        return RuleInputs(
            query=_unit(query) * self.d_head**-0.5,
            key=_unit(key),
            value=value,
            log_decay=-self.A_log.exp() * step,
            write_strength=self.write_proj(x).to(wide).sigmoid(),
        )

    def _read_out(self, x: Tensor, output: Tensor) -> Tensor:
        gate = F.silu(self.gate_proj(x)).unflatten(-1, (self.num_heads, self.d_head))
        return self.output_proj((self.output_norm(output) * gate).flatten(-2))


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + UNIT_NORM_EPS)
