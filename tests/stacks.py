"""Small stacks of every kind that comes with the package, and variants of their options."""

import torch

from mixerloop.config import FormChoice, ModelConfig
from mixerloop.model.initialization import fresh_model
from mixerloop.model.looped_lm import LoopedLM
from small_model import small_config

SIZES = {"num_layers": 2, "d_model": 16, "vocab_size": 12}
HEADS = {"num_heads": 2, "d_head": 6}
FFN = {"swiglu": {"d_ffn": 24}}
MIXERS = {
    "gated_delta_net": HEADS,
    "delta_net": HEADS | {"d_value": 4, "negative_eigenvalues": True},
    "kimi_delta": HEADS | {"d_value": 8},
    "gated_delta_net_2": HEADS | {"negative_eigenvalues": True},
    "gated_linear_attention": HEADS | {"decay_rank": 3, "decay_divisor": 2.0},
    "retention": HEADS | {"rotary_base": 50.0},
    "mamba2": {"num_heads": 4, "d_head": 6, "d_state": 5, "num_groups": 2},
    "attention": HEADS,
}
VARIANTS = {
    "kimi_delta, bounded": ("kimi_delta", HEADS | {"least_log_decay": -5.0}),
    "attention, window": ("attention", HEADS | {"window": 4}),
    "attention, grouped": (
        "attention",
        {"num_heads": 4, "d_head": 6, "num_kv_heads": 2, "rotary": "interleaved"}
        | {"rotary_base": 50.0, "query_key_norm": "head", "output_gate": True, "window": 5},
    ),
    "attention, no positions": ("attention", HEADS | {"rotary": "none"}),
    "attention, biases": (
        "attention",
        HEADS | {"query_key_norm": "all_heads", "qkv_bias": True, "output_bias": True},
    ),
}
FFNS = {
    "experts": {"d_ffn": 16, "num_experts": 4},
    "experts, sigmoid": {"d_ffn": 24, "num_experts": 6, "num_chosen": 3, "router": "sigmoid"}
    | {"normalise_weights": False, "d_shared": 8, "balance": 0.0, "router_z": 0.0},
}
STACKS = {
    **{name: {"mixer": name, name: options, **FFN} for name, options in MIXERS.items()},
    **{name: {"mixer": kind, kind: options, **FFN} for name, (kind, options) in VARIANTS.items()},
    **{
        name: {"ffn": "experts", "experts": options, "gated_delta_net": HEADS}
        for name, options in FFNS.items()
    },
    "sandwich": {"norm_placement": "sandwich", "attention": HEADS, "mixer": "attention"}
    | {"swiglu": FFN["swiglu"] | {"bias": True}},
    "post": {"norm_placement": "post", "gated_delta_net": HEADS, **FFN},
    "after_add": {"norm_placement": "after_add", "attention": HEADS, "mixer": "attention"}
    | {"embedding_scale": 3.0, "tied_head": False, **FFN},
    "hybrid": {"mixer": "1 mamba2, 1 attention", "ffn": ["swiglu", "experts"]}
    | {"mamba2": MIXERS["mamba2"] | {"norm_per_group": True}}
    | {"attention": HEADS | {"window": 4}, "experts": FFNS["experts"], **FFN},
}
"""The keys of `[model]` of each stack, besides its sizes."""


def stack_config(name: str, schedule: str = "mixer_loop(2)") -> ModelConfig:
    """A small model of a stack."""
    return small_config(**SIZES, schedule=schedule, **STACKS[name])


def large_model(
    config: ModelConfig, *, form: FormChoice = "auto", dtype: torch.dtype = torch.float32
) -> LoopedLM:
    """A model with weights so large that a bug shows."""
    model = fresh_model(config, seed=0, form=form)
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.data.mul_(4)
    return model.to(dtype)
