"""Ouro: a Llama with two norms around each sublayer, whose whole stack runs several times."""

from functools import partial
from typing import Any

from mixerloop.interop.families.family import Family, Keys
from mixerloop.interop.families.llama import full_loop_count, llama_pieces, read_llama

NORMS = {
    "mixer_norm": "input_layernorm",
    "mixer_post_norm": "input_layernorm_2",
    "ffn_norm": "post_attention_layernorm",
    "ffn_post_norm": "post_attention_layernorm_2",
}
PASSES = "total_ut_steps"


def _read(keys: Keys) -> dict[str, Any]:
    keys.must_be("early_exit_threshold", 1.0)  # which runs all passes, always
    keys.ignore("early_exit_step")
    return read_llama(keys) | {
        "schedule": f"full_loop({keys.size(PASSES)})",
        "norm_placement": "sandwich",
        "pass_norm": {"unit": "stack", "shared": True},
    }


OURO = Family(
    model_type="ouro",
    read=_read,
    pieces=partial(llama_pieces, norms=NORMS),
    write_schedule=full_loop_count(PASSES),
    unused=("model.early_exit_gate.weight", "model.early_exit_gate.bias"),
)
