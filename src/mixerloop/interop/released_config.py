"""A `config.json` of the released checkpoints, or of flash-linear-attention, as ours; and back.

Every key is either read, or must have the one value our model has, or means nothing for what is
computed. A key that is none of these is refused by name.
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from mixerloop.config import ModelConfig, PassResidual
from mixerloop.notation import notation
from mixerloop.schedule import DEFAULT_NUM_PASSES
from mixerloop.strict import one_of, suggest

ModelType = Literal["gated_deltanet", "mixerloop", "fullloop", "ffnloop"]
LOOP_OF = {
    "gated_deltanet": "no_loop",
    "mixerloop": "mixer_loop",
    "fullloop": "full_loop",
    "ffnloop": "ffn_loop",
}
UNIT_OF: dict[str, PassResidual] = {"mixerloop": "mixer", "fullloop": "stack", "ffnloop": "ffn"}
"""What a pass of the learned residual goes round."""

SIZES = {
    "num_hidden_layers": "num_layers",
    "hidden_size": "d_model",
    "num_heads": "num_heads",
    "head_dim": "d_head",
    "intermediate_size": "d_ffn",
    "vocab_size": "vocab_size",
    "conv_size": "conv_width",
    "norm_eps": "norm_eps",
}
"""Theirs to ours."""
OURS = ("schedule", "num_passes", "pass_residual")
MUST_BE: dict[str, tuple[Any, ...]] = {
    "expand_v": (1,),
    "use_gate": (True,),
    "use_short_conv": (True,),
    "conv_bias": (False,),
    "allow_neg_eigval": (False,),
    "hidden_act": ("swish", "silu"),
    "output_gate_activation": ("swish", "silu"),
    "tie_word_embeddings": (True,),
    "attn": (None,),
    "attnres_block_size": (None,),
    "is_encoder_decoder": (False,),
}
WITHOUT_MEANING = {
    *("model_type", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "return_dict", "_name_or_path"),
    *("initializer_range", "max_position_embeddings", "attn_mode", "fuse_norm", "fuse_swiglu"),
    *("fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp", "hidden_ratio"),
    *("output_hidden_states", "output_attentions", "chunk_size_feed_forward", "problem_type"),
    *("id2label", "label2id", "layer_types", "num_attention_heads", "tokenizer_class"),
}


def model_config(
    given: Mapping[str, Any],
    *,
    residual_passes: int | None = None,
    schedule: str | None = None,
    ignore: Collection[str] = (),
) -> ModelConfig:
    """Our config from theirs; `residual_passes` are the rows of a learned residual, if any.

    A `schedule` that is given takes the place of theirs.
    """
    kind = given.get("model_type")
    if not isinstance(kind, str) or kind not in LOOP_OF:
        raise ValueError(f"model_type '{kind}' is not known here; {suggest(kind, LOOP_OF)}")
    known = {*SIZES, *OURS, *MUST_BE, *WITHOUT_MEANING, "num_v_heads", *ignore}
    for key in given:
        if key not in known:
            raise ValueError(f"unknown key {key}; {suggest(key, {*SIZES, *OURS, *MUST_BE})}")
    for key, values in MUST_BE.items():
        if key in given and given[key] not in values:
            raise ValueError(f"{key} = {given[key]!r}: our models have {values[0]!r}")
    if given.get("num_v_heads") not in (None, given.get("num_heads")):
        raise ValueError("num_v_heads: our models have as many heads for values as for keys")
    sizes = {ours: given[theirs] for theirs, ours in SIZES.items() if given.get(theirs) is not None}
    for theirs, ours in SIZES.items():
        if ours not in sizes and ours != "conv_width":  # which is 4 everywhere
            raise ValueError(f"{theirs} is missing")
        if ours in sizes and (isinstance(sizes[ours], bool) or not _is_number(sizes[ours], ours)):
            raise ValueError(f"{theirs} = {sizes[ours]!r}: not a number it can be")
    for key in ("schedule", "pass_residual"):
        if not isinstance(given.get(key), str | None):
            raise ValueError(f"{key} = {given[key]!r}: not a text")
    unit: PassResidual = one_of(PassResidual, given.get("pass_residual") or "none", "pass_residual")
    if residual_passes is not None and unit == "none":
        if kind not in UNIT_OF:
            raise ValueError("a learned residual needs a loop to go round")
        unit = UNIT_OF[kind]
    written = given.get("schedule")
    passes_given = given.get("num_passes") is not None and "num_passes" not in ignore
    if passes_given and schedule is None:
        if kind == "gated_deltanet":
            raise ValueError("num_passes: a gated_deltanet has no loop; give a schedule")
        if written is not None:
            raise ValueError("num_passes: the schedule says how often; change that, or remove it")
    text = schedule or written or _loop(kind, given, residual_passes)
    return ModelConfig(**sizes, schedule=text, pass_residual=unit)


def released_config(config: ModelConfig) -> dict[str, Any]:
    """Ours as theirs, with the schedule written out."""
    sizes = {theirs: getattr(config, ours) for theirs, ours in SIZES.items()}
    return {
        "model_type": "mixerloop",
        **sizes,
        "schedule": notation(config.occurrences()),
        "pass_residual": config.pass_residual,
        "tie_word_embeddings": True,
    }


def _is_number(value: object, name: str) -> bool:
    return isinstance(value, float if name == "norm_eps" else int)


def _loop(kind: str, given: Mapping[str, Any], residual_passes: int | None) -> str:
    if kind == "gated_deltanet":
        return "no_loop"
    passes = given.get("num_passes")
    if passes is None:
        passes = residual_passes or DEFAULT_NUM_PASSES
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise ValueError(f"num_passes = {passes!r}: not a number it can be")
    return f"{LOOP_OF[kind]}({passes})"
