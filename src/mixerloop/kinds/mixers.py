"""The mixers that come with the package: their options and their registration."""

from dataclasses import dataclass
from typing import Literal

from mixerloop.kinds.registry import Kind, check_size, register

MOST_CONV_WIDTH = 1024  # far wider than any short convolution; its time grows with the width
RotaryPairs = Literal["half", "interleaved"]
"""The channels that turn together: the halves of a head (Llama), or neighbours (GPT-J)."""


@dataclass(frozen=True, kw_only=True)
class DeltaRuleOptions:
    """Options that all mixers of the delta rule have."""

    num_heads: int
    """Heads of the mixer."""
    d_head: int
    """Width of a head's keys and queries, and of its values unless d_value says otherwise."""
    d_value: int | None = None
    """Width of a head's values where it is not d_head."""
    negative_eigenvalues: bool = False
    """Write strengths up to 2 instead of 1, so that a write may turn a memory round."""
    conv_width: int = 4
    """Tokens the short convolution in front of the mixer sees."""

    def __post_init__(self) -> None:
        """Reject impossible sizes."""
        for name in ("num_heads", "d_head"):
            check_size(name, getattr(self, name))
        check_size("conv_width", self.conv_width, most=MOST_CONV_WIDTH)
        if self.d_value is not None:
            check_size("d_value", self.d_value)

    @property
    def value_width(self) -> int:
        """Width of a head's values."""
        return self.d_head if self.d_value is None else self.d_value

    @property
    def largest_write(self) -> float:
        """The bound of a write strength."""
        return 2.0 if self.negative_eigenvalues else 1.0


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNetOptions(DeltaRuleOptions):
    """Options of the Gated DeltaNet mixer."""


@dataclass(frozen=True, kw_only=True)
class DeltaNetOptions(DeltaRuleOptions):
    """Options of the DeltaNet mixer."""


@dataclass(frozen=True, kw_only=True)
class KimiDeltaOptions(DeltaRuleOptions):
    """Options of the Kimi delta attention mixer."""

    least_log_decay: float | None = None
    """The log decay of a channel lies between this number and 0; without it, it has no bound."""

    def __post_init__(self) -> None:
        """Reject impossible sizes, and a bound that is not below zero."""
        super().__post_init__()
        if self.least_log_decay is not None and not float("-inf") < self.least_log_decay < 0:
            raise ValueError(f"least_log_decay must be below 0, got {self.least_log_decay}")


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNet2Options(DeltaRuleOptions):
    """Options of the Gated DeltaNet-2 mixer."""


@dataclass(frozen=True, kw_only=True)
class GatedLinearAttentionOptions:
    """Options of the gated linear attention mixer."""

    num_heads: int
    """Heads of the mixer."""
    d_head: int
    """Width of a head's keys and queries; its values are twice as wide unless d_value says so."""
    d_value: int | None = None
    """Width of a head's values where it is not twice d_head."""
    decay_rank: int = 16
    """Rank of the projection to the decays."""
    decay_divisor: float = 16.0
    """Log decays are divided by this number: a memory fades slowly at the start."""

    def __post_init__(self) -> None:
        """Reject impossible sizes."""
        for name in ("num_heads", "d_head", "decay_rank"):
            check_size(name, getattr(self, name))
        if self.d_value is not None:
            check_size("d_value", self.d_value)
        if not 0 < self.decay_divisor < float("inf"):
            raise ValueError(f"decay_divisor must be above 0, got {self.decay_divisor}")

    @property
    def value_width(self) -> int:
        """Width of a head's values."""
        return 2 * self.d_head if self.d_value is None else self.d_value


@dataclass(frozen=True, kw_only=True)
class RetentionOptions:
    """Options of the retention mixer."""

    num_heads: int
    """Heads of the mixer; each fades at its own constant rate."""
    d_head: int
    """Width of a head's keys and queries; its values are twice as wide unless d_value says so."""
    d_value: int | None = None
    """Width of a head's values where it is not twice d_head."""
    rotary_base: float = 10_000.0
    """Base of the rotary positions of queries and keys."""

    def __post_init__(self) -> None:
        """Reject impossible sizes, and heads that cannot be rotated."""
        for name in ("num_heads", "d_head"):
            check_size(name, getattr(self, name))
        if self.d_value is not None:
            check_size("d_value", self.d_value)
        check_rotary(self.d_head, self.rotary_base)

    @property
    def value_width(self) -> int:
        """Width of a head's values."""
        return 2 * self.d_head if self.d_value is None else self.d_value


@dataclass(frozen=True, kw_only=True)
class Mamba2Options:
    """Options of the Mamba2 mixer."""

    num_heads: int
    """Heads of the mixer."""
    d_head: int
    """Width of a head's values."""
    d_state: int = 128
    """Width of the keys and queries, B and C, that write and read a head's state."""
    num_groups: int = 1
    """Groups of heads; the heads of a group share their keys and queries."""
    norm_per_group: bool = False
    """Normalise each group of heads by itself, and not all heads of a token together."""
    conv_width: int = 4
    """Tokens the short convolution in front of the mixer sees."""

    def __post_init__(self) -> None:
        """Reject impossible sizes, and groups of unequal size."""
        for name in ("num_heads", "d_head", "d_state", "num_groups"):
            check_size(name, getattr(self, name))
        check_size("conv_width", self.conv_width, most=MOST_CONV_WIDTH)
        if self.num_heads % self.num_groups:
            raise ValueError(
                f"num_groups must divide num_heads = {self.num_heads}, got {self.num_groups}"
            )


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """Options of the softmax attention mixer."""

    num_heads: int
    """Heads of queries."""
    d_head: int
    """Width of a head."""
    num_kv_heads: int | None = None
    """Heads of keys and values, each shared by a group of query heads; by default num_heads."""
    rotary: Literal["half", "interleaved", "none"] = "half"
    """Pairs of channels that rotary positions turn: halves of a head, neighbours, or none."""
    rotary_base: float = 10_000.0
    """Base of the rotary positions."""
    query_key_norm: Literal["none", "head", "all_heads"] = "none"
    """Normalise queries and keys: each head by itself, or all heads of a token together."""
    qkv_bias: bool = False
    """Add a learned bias to queries, keys and values."""
    output_bias: bool = False
    """Add a learned bias after the output projection."""
    window: int | None = None
    """Tokens that a token sees, itself included; by default all."""
    output_gate: bool = False
    """Multiply what the heads read by a sigmoid gate."""

    def __post_init__(self) -> None:
        """Reject impossible sizes, groups of unequal size, and heads that cannot be rotated."""
        for name in ("num_heads", "d_head"):
            check_size(name, getattr(self, name))
        for name in ("num_kv_heads", "window"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        if self.num_heads % self.kv_heads:
            raise ValueError(
                f"num_kv_heads must divide num_heads = {self.num_heads}, got {self.num_kv_heads}"
            )
        if self.rotary != "none":
            check_rotary(self.d_head, self.rotary_base)

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads


def check_rotary(width: int, base: float) -> None:
    """Reject heads and bases that have no rotary positions."""
    if width % 2:
        raise ValueError(f"d_head must be even, because channels turn in pairs, got {width}")
    if not 1 < base < float("inf"):
        raise ValueError(f"rotary_base must be above 1, got {base}")


_HOME = "mixerloop.model.mixers"
for _kind in (
    Kind(
        "gated_delta_net", "mixer", GatedDeltaNetOptions, f"{_HOME}.gated_delta_net:GatedDeltaNet"
    ),
    Kind("delta_net", "mixer", DeltaNetOptions, f"{_HOME}.delta_net:DeltaNet"),
    Kind("kimi_delta", "mixer", KimiDeltaOptions, f"{_HOME}.kimi_delta:KimiDelta"),
    Kind(
        "gated_delta_net_2",
        "mixer",
        GatedDeltaNet2Options,
        f"{_HOME}.gated_delta_net_2:GatedDeltaNet2",
    ),
    Kind(
        "gated_linear_attention",
        "mixer",
        GatedLinearAttentionOptions,
        f"{_HOME}.gated_linear_attention:GatedLinearAttention",
    ),
    Kind("retention", "mixer", RetentionOptions, f"{_HOME}.retention:Retention"),
    Kind("mamba2", "mixer", Mamba2Options, f"{_HOME}.mamba2:Mamba2"),
    Kind("attention", "mixer", AttentionOptions, f"{_HOME}.attention:Attention"),
):
    register(_kind)
