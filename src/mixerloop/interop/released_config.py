"""Convert the `config.json` of released checkpoints and of flash-linear-attention, and back.

Every key is either read, or must have the only value that our model supports, or has no effect on
the model. Any other key is rejected by name. The number of passes is never guessed.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mixerloop.config import UNITS, ModelConfig
from mixerloop.interop.layout import FLASH_LINEAR_ATTENTION, LOOPED, Dialect
from mixerloop.kinds import GatedDeltaNetOptions
from mixerloop.notation import notation
from mixerloop.parsing import suggest
from mixerloop.schedule import LOOPS, Unit, num_passes_of


@dataclass(frozen=True)
class Release:
    """A published type of model."""

    architecture: str
    loop: str
    """The named loop of all models of this type."""
    unit: Unit | None = None
    """The unit around which the learned residual of this type is added."""
    dialect: Dialect = LOOPED


NO_LOOP = "gated_deltanet"
RELEASES = {
    NO_LOOP: Release("GatedDeltaNetForCausalLM", "no_loop", dialect=FLASH_LINEAR_ATTENTION),
    "mixerloop": Release("MixerLoopForCausalLM", "mixer_loop", "mixer"),
    "fullloop": Release("FullLoopForCausalLM", "full_loop", "stack"),
    "ffnloop": Release("FFNLoopForCausalLM", "ffn_loop", "ffn"),
}
"""By `model_type`: the type of flash-linear-attention, and the authors' three types."""
ANY_SCHEDULE = "mixerloop_schedule"
"""Our own type, for every other schedule; the authors' code does not load it by mistake."""
ANY_ARCHITECTURE = "LoopedForCausalLM"
TYPES = (*RELEASES, ANY_SCHEDULE)

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
"""Our names of sizes, by the names in config.json."""
LOOP_COUNT, USE_RESIDUAL = "loop_count", "use_residual"
OLD_PASSES = "num_passes"
MIXER, FFN, RESIDUAL = "gated_delta_net", "swiglu", "pass_residual"
"""The kinds that the released layout has names for."""
RELEASED_KEYS = {"norm_placement": "pre", "embedding_scale": 1.0, "tied_head": True}
"""Keys of our models that released models have with one value only."""
LOOP_KEYS = (LOOP_COUNT, USE_RESIDUAL, "schedule", RESIDUAL)
MUST_BE: dict[str, tuple[Any, ...]] = {
    "use_gate": (True,),
    "use_short_conv": (True,),
    "conv_bias": (False,),
    "hidden_act": ("swish", "silu"),
    "output_gate_activation": ("swish", "silu"),
    "tie_word_embeddings": (True,),
    "attn": (None,),
    "attnres_block_size": (None,),
    "is_encoder_decoder": (False,),
}
HIDDEN_RATIO, EXPAND_V, NEGATIVE = "hidden_ratio", "expand_v", "allow_neg_eigval"
SIZE_KEYS = (*SIZES, HIDDEN_RATIO, EXPAND_V, NEGATIVE)
FFN_MULTIPLE = 256
WIDTH_ROUNDING = 1e-6  # relative error of a ratio of two widths that is written in decimals
WITHOUT_MEANING = {
    *("model_type", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "return_dict", "_name_or_path"),
    *("initializer_range", "max_position_embeddings", "attn_mode", "fuse_norm", "fuse_swiglu"),
    *("fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp"),
    *("output_hidden_states", "output_attentions", "chunk_size_feed_forward", "problem_type"),
    *("id2label", "label2id", "layer_types", "num_attention_heads", "tokenizer_class"),
}
OURS_TO_SAY = {"model_type", "architectures", "auto_map", "dtype", "torch_dtype"}
"""Keys that export writes itself; it does not copy them from the folder a model came from."""
PUBLISHED = {
    "attn_mode": "chunk",
    "bos_token_id": None,
    "eos_token_id": None,
    "fuse_cross_entropy": True,
    "fuse_linear_cross_entropy": False,
    "fuse_norm": True,
    "fuse_swiglu": True,
    "hidden_act": "swish",
    HIDDEN_RATIO: 4,
    "initializer_range": 0.02,
    "max_position_embeddings": 1024,
}
"""The values of other keys than sizes and loops in the published files."""
PUBLISHED_WITHOUT_LOOP = {"use_cache": False, "use_gate": True, "use_short_conv": True}
TAKEN_OVER = (WITHOUT_MEANING - OURS_TO_SAY) | {*MUST_BE, HIDDEN_RATIO, NEGATIVE, "num_v_heads"}
"""Keys that export copies from the folder a model came from."""


def model_config(
    given: Mapping[str, Any],
    *,
    has_residual: bool | None = None,
    schedule: str | None = None,
    ignore: Collection[str] = (),
) -> ModelConfig:
    """Our config from a config.json.

    `has_residual` says whether the weights have a learned residual; None leaves that to the config.
    `schedule` overrides the schedule of the config.json.
    """
    kind = given.get("model_type")
    if not isinstance(kind, str) or kind not in TYPES:
        raise ValueError(f"model_type '{kind}' is not known here; {suggest(kind, TYPES)}")
    given = {key: value for key, value in given.items() if key not in ignore}
    if given.get(OLD_PASSES, 1) is None:  # transformers saved our first exports with this key
        del given[OLD_PASSES]
    read = (*SIZE_KEYS, *LOOP_KEYS, *MUST_BE)
    for key in given:
        if key not in {*read, *WITHOUT_MEANING, "num_v_heads"}:
            raise ValueError(f"unknown key {key}; {suggest(key, read)}")
    for key, values in MUST_BE.items():
        if key in given and given[key] not in values:
            raise ValueError(f"{key} = {given[key]!r}: our models have {values[0]!r}")
    if given.get("num_v_heads") not in (None, given.get("num_heads")):
        raise ValueError("num_v_heads: our models have as many heads for values as for keys")
    unit = _residual_unit(kind, given, has_residual)
    return ModelConfig.from_table(
        {
            **_sizes(given),
            "schedule": schedule or _schedule(kind, given),
            **({} if unit is None else {RESIDUAL: {"unit": unit}}),
        }
    )


def released_type(config: ModelConfig, *, prefer: str | None = None) -> str:
    """The published type that fits a model, or our own; if several fit, the preferred type."""
    occurrences, unit = config.occurrences(), _unit_of(config)
    sizes = config.num_layers, num_passes_of(occurrences)
    types = [
        kind
        for kind, release in RELEASES.items()
        if unit in (None, release.unit) and occurrences == LOOPS[release.loop](*sizes)
    ]
    return prefer if prefer in types else next(iter(types), ANY_SCHEDULE)


def released_config(config: ModelConfig, *, like: Mapping[str, Any] | None = None) -> dict:
    """A config.json from our config.

    `like` is the config of the folder the model came from. Keys that have no effect here are copied
    from it. If both have the same type, optional keys that `like` lacks are left out: readers of
    that type know the defaults.
    """
    came_from = None if like is None or "schedule" in like else like.get("model_type")
    mixer = released_mixer(config)
    kind, unit = released_type(config, prefer=came_from), _unit_of(config)
    ours = {**config.table(), **asdict(mixer), **asdict(config.options[FFN])}
    needed: dict[str, Any] = {
        "model_type": kind,
        **{theirs: ours[name] for theirs, name in SIZES.items()},
        EXPAND_V: mixer.value_width / mixer.d_head,
        "tie_word_embeddings": True,
    }
    if mixer.negative_eigenvalues:
        needed[NEGATIVE] = True
    if kind == ANY_SCHEDULE:
        needed |= {
            "architectures": [ANY_ARCHITECTURE],
            "schedule": notation(config.occurrences()),
            RESIDUAL: unit or "none",
            "use_cache": True,
        }
    else:
        needed["architectures"] = [RELEASES[kind].architecture]
    if kind in RELEASES and kind != NO_LOOP:
        needed[LOOP_COUNT] = num_passes_of(config.occurrences())
        # The authors' classes would cache one state for all passes of a layer.
        needed["use_cache"] = False
    if unit is not None and kind != ANY_SCHEDULE:
        needed[USE_RESIDUAL] = True
    usual = PUBLISHED | (PUBLISHED_WITHOUT_LOOP if kind == NO_LOOP else {})
    if LOOP_COUNT in needed:
        usual[USE_RESIDUAL] = False
    if like is None:
        return usual | needed
    taken_over = {key: value for key, value in like.items() if key in TAKEN_OVER}
    if came_from == kind:  # readers of this type know the default of a missing key
        usual = {key: value for key, value in usual.items() if key in like}
    types = {key: "float32" for key in ("dtype", "torch_dtype") if key in like}
    return usual | taken_over | types | needed


def released_mixer(config: ModelConfig) -> GatedDeltaNetOptions:
    """The mixer's options, if the released layout has names for every kind in the model."""
    for name, known in ((MIXER, config.mixer), (FFN, config.ffn)):
        for kind in known:
            if kind != name:
                raise ValueError(f"layers of the kind {kind} have no released layout; {name} has")
    for rule in config.pass_rules():
        if rule != RESIDUAL:
            raise ValueError(f"the pass rule {rule} has no released layout; {RESIDUAL} has")
    for key, only in RELEASED_KEYS.items():
        if getattr(config, key) != only:
            raise ValueError(
                f"models with {key} = {getattr(config, key)!r} have no released layout; the "
                f"released models have {only!r}"
            )
    if config.options[FFN].bias:
        raise ValueError(f"models with biases in the {FFN} have no released layout")
    return config.options[MIXER]


def _unit_of(config: ModelConfig) -> Unit | None:
    """The unit around which the learned residual is added; None without a learned residual."""
    rule = config.pass_rules().get(RESIDUAL)
    return None if rule is None else rule.unit


def _sizes(given: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(given)
    if given.get("intermediate_size") is None and isinstance(given.get("hidden_size"), int):
        given["intermediate_size"] = _ffn_width(given["hidden_size"], given.get(HIDDEN_RATIO))
    sizes = {ours: given[theirs] for theirs, ours in SIZES.items() if given.get(theirs) is not None}
    for theirs, ours in SIZES.items():
        if ours not in sizes and ours != "conv_width":  # which is 4 in every published model
            raise ValueError(f"{theirs} is missing")
        if ours in sizes and not _is_number(sizes[ours], ours):
            raise ValueError(f"{theirs} = {sizes[ours]!r}: not a number it can be")
    sizes["d_value"] = _value_width(sizes["d_head"], given.get(EXPAND_V))
    if not isinstance(given.get(NEGATIVE, False), bool):
        raise ValueError(f"{NEGATIVE} = {given[NEGATIVE]!r}: neither true nor false")
    return sizes | {"negative_eigenvalues": given.get(NEGATIVE, False)}


def _value_width(d_head: int, expand: object) -> int | None:
    """The value width of a head; None if it equals the key width, as in every published file."""
    if expand is None:
        return None
    if isinstance(expand, bool) or not isinstance(expand, int | float):
        raise ValueError(f"{EXPAND_V} = {expand!r}: not a number it can be")
    width = d_head * expand
    if not (1 <= width < math.inf and math.isclose(width, round(width), rel_tol=WIDTH_ROUNDING)):
        raise ValueError(f"{EXPAND_V} = {expand!r}: gives heads of {d_head} values no whole width")
    return None if round(width) == d_head else round(width)


def _ffn_width(width: int, ratio: object) -> int | None:
    """The width in flash-linear-attention: two thirds of the ratio, in whole steps of 256."""
    if ratio is None:
        return None
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < math.inf:
        raise ValueError(f"{HIDDEN_RATIO} = {ratio!r}: not a number it can be")
    return FFN_MULTIPLE * math.ceil(int(width * ratio * 2 / 3) / FFN_MULTIPLE)


def _schedule(kind: str, given: Mapping[str, Any]) -> str:
    written, passes = given.get("schedule"), given.get(LOOP_COUNT)
    if not isinstance(written, str | None):
        raise ValueError(f"schedule = {written!r}: not a text")
    if passes is not None and (not _is_number(passes, LOOP_COUNT) or passes < 1):
        raise ValueError(f"{LOOP_COUNT} = {passes!r}: not a number it can be")
    if passes is not None and written is not None:
        raise ValueError(f"{LOOP_COUNT}: the schedule says how often; change that, or remove it")
    if kind in (NO_LOOP, ANY_SCHEDULE) and passes is not None:
        raise ValueError(f"{LOOP_COUNT}: a {kind} has none; give a schedule")
    if written is not None:
        return written
    if kind == NO_LOOP:
        return "no_loop"
    if kind == ANY_SCHEDULE:
        raise ValueError("schedule is missing")
    if passes is None:
        raise ValueError(f"{LOOP_COUNT} is missing, so the number of passes is not known")
    return f"{RELEASES[kind].loop}({passes})"


def _residual_unit(kind: str, given: Mapping[str, Any], has_table: bool | None) -> str | None:
    """The unit of the learned residual in the config, which must agree with the weights."""
    unit, uses = given.get(RESIDUAL), given.get(USE_RESIDUAL)
    if not isinstance(unit, str | None):
        raise ValueError(f"pass_residual = {unit!r}: not a text")
    if not isinstance(uses, bool | None):
        raise ValueError(f"{USE_RESIDUAL} = {uses!r}: neither true nor false")
    if unit is not None and uses is not None:
        raise ValueError(f"{USE_RESIDUAL}: pass_residual says this; remove one of them")
    if unit is not None:
        known = ("none", *UNITS, "released")
        if unit not in known:
            raise ValueError(f"unknown pass_residual '{unit}'; {suggest(unit, known)}")
        return None if unit == "none" else unit
    if has_table is not None and uses is not None and uses != has_table:
        there = "have" if has_table else "do not have"
        raise ValueError(f"{USE_RESIDUAL} = {str(uses).lower()}, but the weights {there} one")
    if not (uses if has_table is None else has_table):
        return None
    release = RELEASES.get(kind)
    if release is None or release.unit is None:
        raise ValueError("a learned residual needs a loop to go round")
    return release.unit


def _is_number(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, float if name == "norm_eps" else int)
