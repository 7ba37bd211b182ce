"""Names and shapes of weights: ours, and those of the released checkpoints.

Both have the same numbers. There, query, key and value have a matrix and a filter each, and so have
gate and up; here one matrix serves all of them. The checkpoints without a loop have the names of
flash-linear-attention.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

MIXER = {
    "a_proj.weight": "decay_proj.weight",
    "b_proj.weight": "write_proj.weight",
    "g_proj.weight": "gate_proj.weight",
    "o_proj.weight": "output_proj.weight",
    "o_norm.weight": "output_norm.weight",
    "A_log": "A_log",
    "dt_bias": "dt_bias",
}
"""Theirs to ours, of what is the same tensor."""
QKV = ("q", "k", "v")
RESIDUAL_WEIGHT = "model.residual_weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Dialect:
    """What the parts of a layer are called."""

    mixer: str
    ffn_norm: str
    ffn: str


LOOPED = Dialect(mixer="mixer", ffn_norm="ffn_norm", ffn="ffn")
FLASH_LINEAR_ATTENTION = Dialect(mixer="attn", ffn_norm="mlp_norm", ffn="mlp")


def to_released(
    tensors: Mapping[str, Tensor], *, num_layers: int, dialect: Dialect = LOOPED
) -> dict[str, Tensor]:
    """Our parameters under their names; the head is the embedding and not written twice."""
    found = {
        "model.embeddings.weight": tensors["embedding.weight"],
        "model.norm.weight": tensors["final_norm.weight"],
    }
    if "pass_residual.weight" in tensors:
        found[RESIDUAL_WEIGHT] = tensors["pass_residual.weight"]
    for number in range(num_layers):
        ours, theirs = f"layers.{number}", f"model.layers.{number}"
        mixer, ffn = f"{theirs}.{dialect.mixer}", f"{theirs}.{dialect.ffn}"
        found[f"{theirs}.attn_norm.weight"] = tensors[f"{ours}.mixer_norm.weight"]
        found[f"{theirs}.{dialect.ffn_norm}.weight"] = tensors[f"{ours}.ffn_norm.weight"]
        for their_name, our_name in MIXER.items():
            found[f"{mixer}.{their_name}"] = tensors[f"{ours}.mixer.{our_name}"]
        d_inner = tensors[f"{ours}.mixer.gate_proj.weight"].shape[0]
        channels = tensors[f"{ours}.mixer.qkv_conv"].shape[0]
        sizes = [(channels - d_inner) // 2, (channels - d_inner) // 2, d_inner]
        projections = tensors[f"{ours}.mixer.qkv_proj.weight"].split(sizes)
        filters = tensors[f"{ours}.mixer.qkv_conv"].split(sizes)
        for name, projection, conv in zip(QKV, projections, filters, strict=True):
            found[f"{mixer}.{name}_proj.weight"] = projection
            found[f"{mixer}.{name}_conv1d.weight"] = conv[:, None]
        gate, up = tensors[f"{ours}.ffn.gate_up_proj.weight"].chunk(2)
        found[f"{ffn}.gate_proj.weight"] = gate
        found[f"{ffn}.up_proj.weight"] = up
        found[f"{ffn}.down_proj.weight"] = tensors[f"{ours}.ffn.down_proj.weight"]
    return {name: tensor.detach().contiguous() for name, tensor in found.items()}


def from_released(tensors: Mapping[str, Tensor], *, num_layers: int) -> dict[str, Tensor]:
    """Their parameters under our names; whatever is missing or left over is named."""
    left = dict(tensors)
    dialect = dialect_of(tensors)

    def take(name: str) -> Tensor:
        if name not in left:
            raise ValueError(f"missing {name}")
        return left.pop(name).to(torch.float32)

    found = {
        "embedding.weight": take("model.embeddings.weight"),
        "final_norm.weight": take("model.norm.weight"),
    }
    if HEAD in left and not torch.equal(take(HEAD), found["embedding.weight"]):
        raise ValueError(f"{HEAD} is not the embedding; only tied heads are known here")
    if RESIDUAL_WEIGHT in left:
        found["pass_residual.weight"] = take(RESIDUAL_WEIGHT)
    for number in range(num_layers):
        ours, theirs = f"layers.{number}", f"model.layers.{number}"
        mixer, ffn = f"{theirs}.{dialect.mixer}", f"{theirs}.{dialect.ffn}"
        found[f"{ours}.mixer_norm.weight"] = take(f"{theirs}.attn_norm.weight")
        found[f"{ours}.ffn_norm.weight"] = take(f"{theirs}.{dialect.ffn_norm}.weight")
        for their_name, our_name in MIXER.items():
            found[f"{ours}.mixer.{our_name}"] = take(f"{mixer}.{their_name}")
        projections = [take(f"{mixer}.{name}_proj.weight") for name in QKV]
        filters = [take(f"{mixer}.{name}_conv1d.weight")[:, 0] for name in QKV]
        found[f"{ours}.mixer.qkv_proj.weight"] = torch.cat(projections)
        found[f"{ours}.mixer.qkv_conv"] = torch.cat(filters)
        halves = [take(f"{ffn}.{name}_proj.weight") for name in ("gate", "up")]
        found[f"{ours}.ffn.gate_up_proj.weight"] = torch.cat(halves)
        found[f"{ours}.ffn.down_proj.weight"] = take(f"{ffn}.down_proj.weight")
    if left:
        raise ValueError(f"unexpected {', '.join(sorted(left))}")
    return found


def dialect_of(tensors: Mapping[str, Tensor]) -> Dialect:
    """Whose names these are."""
    has_attn = any(re.match(r"model\.layers\.\d+\.attn\.", name) for name in tensors)
    return FLASH_LINEAR_ATTENTION if has_attn else LOOPED
