"""A size with another mixer: with as many parameters as Gated DeltaNet has, or nearly."""

from typing import Any

from mixerloop.config import ModelConfig
from mixerloop.kinds import KINDS
from mixerloop.parsing import suggest

BASE = "gated_delta_net"


def with_mixer(config: ModelConfig, kind: str) -> ModelConfig:
    """All layers with mixers of this kind.

    Per token and head, Gated DeltaNet has five projections of one width. Mixers whose values are
    twice as wide as their keys, and Mamba2, get the widths at which they have as many weights.
    """
    if config.mixer != (BASE,):
        raise ValueError(
            f"mixers are compared at a size with {BASE}, not {', '.join(config.mixer)}"
        )
    num_heads, d_head = config.options[BASE].num_heads, config.options[BASE].d_head
    plain = {"num_heads": num_heads, "d_head": d_head}
    narrow = {"num_heads": num_heads, "d_head": 5 * d_head // 16 * 2}
    options: dict[str, dict[str, Any]] = {
        BASE: plain,
        "delta_net": plain,
        "kimi_delta": plain,
        "gated_delta_net_2": plain,
        "gated_linear_attention": narrow,
        "retention": narrow,
        "mamba2": {"num_heads": (5 * num_heads - 2) // 3, "d_head": d_head, "d_state": d_head},
        "attention": plain,
    }
    if kind not in options or kind not in KINDS:
        raise ValueError(f"unknown mixer '{kind}'; {suggest(kind, options)}")
    return config.changed(mixer=kind, **{kind: options[kind]})
