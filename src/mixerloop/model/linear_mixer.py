"""What mixers around linear attention share: their state, their cost, and how they run.

A mixer of this family says what it makes of its tokens before the rule (`prepare`) and after it
(`finish`). The rule between the two is `mixerloop.ops.linear_attention`.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mixerloop.config import Form
from mixerloop.model.lens import UNWATCHED, Axes, Look
from mixerloop.model.projection import Projection
from mixerloop.model.sublayer import Cost, MixerModule, Output, Place, State
from mixerloop.ops.gated_delta_rule import form_of_rule
from mixerloop.ops.linear_attention import linear_attention

UNIT_NORM_EPS = 1e-6  # under the root, as in flash-linear-attention
OF_HEADS: Axes = ("window", "token", "head")
OF_KEYS: Axes = (*OF_HEADS, "d_key")
OF_VALUES: Axes = (*OF_HEADS, "d_value")


class RuleInputs(NamedTuple):
    """Arguments of the rule, in float32 or wider."""

    query: Float[Tensor, "batch seq heads d_key"]
    key: Float[Tensor, "batch seq heads d_key"]
    value: Float[Tensor, "batch seq heads d_value"]
    log_decay: Float[Tensor, "batch seq heads *d_key"] | None = None
    erase_key: Float[Tensor, "batch seq heads d_key"] | None = None
    write_strength: Float[Tensor, "batch seq heads"] | None = None


class Prepared(NamedTuple):
    """What a mixer makes of its tokens before the rule runs."""

    rule: RuleInputs
    carried: State = ()
    """The state besides the memory, after the last token."""
    aside: tuple[Tensor, ...] = ()
    """Tensors for `finish`, such as a gate."""


class LinearMixer(MixerModule):
    """A mixer with a matrix memory for each head; its state is the memory and what it carries."""

    output_proj: nn.Linear
    gates: ClassVar[Mapping[str, Axes]] = {}
    """The optional inputs of the rule that this mixer has, with their axes."""

    def __init__(
        self, place: Place, *, num_heads: int, d_key: int, d_value: int, erases: bool
    ) -> None:
        super().__init__()
        self.num_heads, self.d_key, self.d_value = num_heads, d_key, d_value
        self.erases = erases
        self.form: Form = form_of_rule(place.form, "own" if erases else "none", d_key)

    @abstractmethod
    def prepare(self, x: Float[Tensor, "batch seq d_model"], carried: State | None) -> Prepared:
        """Everything before the rule; without `carried` a new sequence begins."""

    @abstractmethod
    def finish(
        self, read: Float[Tensor, "batch seq heads d_value"], aside: tuple[Tensor, ...]
    ) -> Float[Tensor, "batch seq values"]:
        """Everything between the rule and the output projection, such as a norm and a gate."""

    def initial_carried(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """The state besides the memory before the first token."""
        return ()

    def forward(
        self,
        x: Float[Tensor, "batch seq d_model"],
        state: State | None = None,
        look: Look = UNWATCHED,
    ) -> Output:
        """Mix tokens with those before them."""
        memory, carried = (None, None) if state is None else (state[0], state[1:])
        prepared = self.prepare(x, carried)
        rule = prepared.rule._asdict()
        if look is not UNWATCHED:
            rule |= {name: look(name, x) for name, x in rule.items() if x is not None}
        read, memory = linear_attention(**rule, initial_state=memory, form=self.form)
        update = self.output_proj(self.finish(look("read", read), prepared.aside))
        return Output(update, (look("state", memory), *prepared.carried))

    def context_off(
        self, x: Float[Tensor, "batch seq d_model"]
    ) -> Float[Tensor, "batch seq d_model"]:
        """The update when each token writes to an empty memory and reads its own write."""
        alone = self.prepare(x.flatten(0, 1)[:, None], None)
        rule = alone.rule
        written = rule.value
        if rule.write_strength is not None:
            written = rule.write_strength[..., None] * written
        read = (rule.query * rule.key).sum(-1, keepdim=True) * written
        return self.output_proj(self.finish(read, alone.aside)).view(x.shape)

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """An empty memory, and nothing before the first token."""
        memory = torch.zeros(
            *(batch, self.num_heads, self.d_key, self.d_value),
            dtype=torch.promote_types(dtype, torch.float32),
            device=device,
        )
        return (memory, *self.initial_carried(batch, dtype, device))

    def cost(self, prefix_tokens: int) -> Cost:
        """Per token and head the rule writes to the memory and reads; erasing reads once more."""
        state = self.initial_state(1, torch.float32, torch.device("meta"))
        return Cost(
            projection_macs=sum(one.numel() for one in self.parameters() if one.ndim >= 2),
            recurrence_macs=(3 if self.erases else 2) * state[0].numel(),
            state_bytes=sum(tensor.nbytes for tensor in state),
        )

    def forms(self) -> dict[str, Form]:
        """The form of the rule."""
        return {"linear_attention": self.form}

    def points(self) -> dict[str, Axes]:
        """The rule's inputs and outputs."""
        return rule_points(self.gates)


def rule_points(gates: Mapping[str, Axes]) -> dict[str, Axes]:
    """The inputs of a rule with these gates, what it reads, and the memory after the last token."""
    return {
        **{"query": OF_KEYS, "key": OF_KEYS, "value": OF_VALUES, **gates, "read": OF_VALUES},
        "state": ("window", "head", "d_key", "d_value"),
    }


def low_rank(d_in: int, rank: int, d_out: int, *, form: Form, bias: bool = False) -> nn.Sequential:
    """A projection of a small rank; `bias` is that of the second matrix."""
    return nn.Sequential(
        Projection(d_in, rank, form=form), Projection(rank, d_out, bias=bias, form=form)
    )


def wide(x: Tensor) -> Tensor:
    """`x` in float32 or wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def unit_length(x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
    """The last dimension at length 1."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + UNIT_NORM_EPS)
