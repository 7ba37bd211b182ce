"""Convert names and shapes of weights between ours and those of the released checkpoints.

Both hold the same numbers. In released checkpoints query, key and value have a matrix and a filter
each, and gate and up a matrix each. Ours join query, key and value, and gate and up, in one matrix.
The released checkpoints without a loop have the names of flash-linear-attention.
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
"""Our names of the mixer's tensors by the released names, where both have the same tensor."""
QKV = ("q", "k", "v")
RESIDUAL_WEIGHT = "model.residual_weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Dialect:
    """The names of the parts of a layer in one family of checkpoints."""

    mixer: str
    ffn_norm: str
    ffn: str


LOOPED = Dialect(mixer="mixer", ffn_norm="ffn_norm", ffn="ffn")
FLASH_LINEAR_ATTENTION = Dialect(mixer="attn", ffn_norm="mlp_norm", ffn="mlp")


def to_released(
    tensors: Mapping[str, Tensor], *, num_layers: int, dialect: Dialect = LOOPED
) -> dict[str, Tensor]:
    """Our parameters under the released names, without the head, which equals the embedding."""
    released = {
        "model.embeddings.weight": tensors["embedding.weight"],
        "model.norm.weight": tensors["final_norm.weight"],
    }
    if "pass_residual.weight" in tensors:
        released[RESIDUAL_WEIGHT] = tensors["pass_residual.weight"]
    for number in range(num_layers):
        ours, theirs = f"layers.{number}", f"model.layers.{number}"
        mixer, ffn = f"{theirs}.{dialect.mixer}", f"{theirs}.{dialect.ffn}"
        released[f"{theirs}.attn_norm.weight"] = tensors[f"{ours}.mixer_norm.weight"]
        released[f"{theirs}.{dialect.ffn_norm}.weight"] = tensors[f"{ours}.ffn_norm.weight"]
        for their_name, our_name in MIXER.items():
            released[f"{mixer}.{their_name}"] = tensors[f"{ours}.mixer.{our_name}"]
        d_inner = tensors[f"{ours}.mixer.gate_proj.weight"].shape[0]
        channels = tensors[f"{ours}.mixer.qkv_conv"].shape[0]
        sizes = [(channels - d_inner) // 2, (channels - d_inner) // 2, d_inner]
        projections = tensors[f"{ours}.mixer.qkv_proj.weight"].split(sizes)
        filters = tensors[f"{ours}.mixer.qkv_conv"].split(sizes)
        for name, projection, conv in zip(QKV, projections, filters, strict=True):
            released[f"{mixer}.{name}_proj.weight"] = projection
            released[f"{mixer}.{name}_conv1d.weight"] = conv[:, None]
        gate, up = tensors[f"{ours}.ffn.gate_up_proj.weight"].chunk(2)
        released[f"{ffn}.gate_proj.weight"] = gate
        released[f"{ffn}.up_proj.weight"] = up
        released[f"{ffn}.down_proj.weight"] = tensors[f"{ours}.ffn.down_proj.weight"]
    return {name: tensor.detach().contiguous() for name, tensor in released.items()}


def from_released(tensors: Mapping[str, Tensor], *, num_layers: int) -> dict[str, Tensor]:
    """Released parameters under our names; raises an error that names missing or extra tensors."""
    left = dict(tensors)
    dialect = dialect_of(tensors)

    def take(name: str) -> Tensor:
        if name not in left:
            raise ValueError(f"missing {name}")
        return left.pop(name).to(torch.float32)

    parameters = {
        "embedding.weight": take("model.embeddings.weight"),
        "final_norm.weight": take("model.norm.weight"),
    }
    if HEAD in left and not torch.equal(take(HEAD), parameters["embedding.weight"]):
        raise ValueError(f"{HEAD} is not the embedding; only tied heads are known here")
    if RESIDUAL_WEIGHT in left:
        parameters["pass_residual.weight"] = take(RESIDUAL_WEIGHT)
    for number in range(num_layers):
        ours, theirs = f"layers.{number}", f"model.layers.{number}"
        mixer, ffn = f"{theirs}.{dialect.mixer}", f"{theirs}.{dialect.ffn}"
        parameters[f"{ours}.mixer_norm.weight"] = take(f"{theirs}.attn_norm.weight")
        parameters[f"{ours}.ffn_norm.weight"] = take(f"{theirs}.{dialect.ffn_norm}.weight")
        for their_name, our_name in MIXER.items():
            parameters[f"{ours}.mixer.{our_name}"] = take(f"{mixer}.{their_name}")
        projections = [take(f"{mixer}.{name}_proj.weight") for name in QKV]
        filters = [take(f"{mixer}.{name}_conv1d.weight")[:, 0] for name in QKV]
        parameters[f"{ours}.mixer.qkv_proj.weight"] = torch.cat(projections)
        parameters[f"{ours}.mixer.qkv_conv"] = torch.cat(filters)
        halves = [take(f"{ffn}.{name}_proj.weight") for name in ("gate", "up")]
        parameters[f"{ours}.ffn.gate_up_proj.weight"] = torch.cat(halves)
        parameters[f"{ours}.ffn.down_proj.weight"] = take(f"{ffn}.down_proj.weight")
    if left:
        raise ValueError(f"unexpected {', '.join(sorted(left))}")
    return parameters


def dialect_of(tensors: Mapping[str, Tensor]) -> Dialect:
    """The family of checkpoints whose names the tensors have."""
    has_attn = any(re.match(r"model\.layers\.\d+\.attn\.", name) for name in tensors)
    return FLASH_LINEAR_ATTENTION if has_attn else LOOPED
