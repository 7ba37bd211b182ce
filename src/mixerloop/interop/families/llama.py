"""Llama and its relatives: Mistral, Qwen2, Qwen3, OLMo2, and Nanbeige, which loops a Llama."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mixerloop.config import ModelConfig
from mixerloop.interop.families.family import Family, Keys, Pieces, Source, stacked, whole
from mixerloop.kinds import AttentionOptions
from mixerloop.notation import notation
from mixerloop.schedule import full_loop, no_loop, num_passes_of

Table = dict[str, Any]
MISTRAL_WINDOW = 4096  # of a config without the key; null means no window


def read_llama(keys: Keys, **attention: Any) -> Table:
    """The table of a model with the keys of Llama; `attention` adds options of the mixer.

    A model without windows may have the keys of a window, if they say that there is none.
    """
    if "window" not in attention:
        keys.must_be("sliding_window", None)
        keys.must_be("use_sliding_window", False)
        keys.ignore("max_window_layers")
        if set(keys.take("layer_types") or ()) - {"full_attention"}:
            raise ValueError("layer_types: our models have the same attention in every layer")
    num_heads, d_model = keys.size("num_attention_heads"), keys.size("hidden_size")
    keys.must_be("hidden_act", "silu", "swish")
    keys.must_be("attention_dropout", 0.0)
    keys.must_be("pretraining_tp", 1)
    keys.must_be("rope_interleaved", False)
    keys.must_be("is_llama_config", True)
    return {
        "num_layers": keys.size("num_hidden_layers"),
        "d_model": d_model,
        "vocab_size": keys.size("vocab_size"),
        "schedule": "no_loop",
        "norm_eps": keys.number("rms_norm_eps"),
        "tied_head": keys.flag("tie_word_embeddings", False),
        "mixer": "attention",
        "attention": {
            "num_heads": num_heads,
            "d_head": keys.take("head_dim", d_model // num_heads),
            "num_kv_heads": keys.take("num_key_value_heads", num_heads),
            "rotary_base": _rotary_base(keys),
            **attention,
        },
        "swiglu": {
            "d_ffn": keys.size("intermediate_size"),
            "bias": keys.flag("mlp_bias", False),
        },
    }


def _rotary_base(keys: Keys) -> float:
    """The base of the rotary positions; stretched positions are rejected."""
    base = keys.take("rope_theta", 10_000.0)
    for key in ("rope_scaling", "rope_parameters"):
        parameters = keys.take(key, {})
        if not isinstance(parameters, dict):
            raise ValueError(f"{key} = {parameters!r}: not an object")
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        if kind != "default":
            raise ValueError(f"rope_type = {kind!r}: our models have 'default'")
        if set(parameters) - {"rope_type", "type", "rope_theta"}:
            raise ValueError(f"{key} = {parameters!r}: our models have a base only")
        base = parameters.get("rope_theta", base)
    if not isinstance(base, int | float) or isinstance(base, bool):
        raise ValueError(f"rope_theta = {base!r}: not a number")
    return float(base)


def _mistral(keys: Keys) -> Table:
    window = keys.take("sliding_window", None if keys.has("sliding_window") else MISTRAL_WINDOW)
    if set(keys.take("layer_types") or ()) - {"sliding_attention"}:
        raise ValueError("layer_types: our models have the same attention in every layer")
    return read_llama(keys, window=window)


def _without_window(keys: Keys) -> None:
    """Accept the window of a Qwen that does not use it, and reject one that some layers use."""
    keys.must_be("use_sliding_window", False)
    keys.drop("sliding_window")


def _llama(keys: Keys) -> Table:
    biases = keys.flag("attention_bias", False)
    return read_llama(keys, qkv_bias=biases, output_bias=biases)


def _qwen2(keys: Keys) -> Table:
    _without_window(keys)
    return read_llama(keys, qkv_bias=True)


def _qwen3(keys: Keys) -> Table:
    _without_window(keys)
    biases = keys.flag("attention_bias", False)
    return read_llama(keys, qkv_bias=biases, output_bias=biases, query_key_norm="head")


def _olmo2(keys: Keys) -> Table:
    biases = keys.flag("attention_bias", False)
    table = read_llama(keys, qkv_bias=biases, output_bias=biases, query_key_norm="all_heads")
    return table | {"norm_placement": "post"}


def _nanbeige(keys: Keys) -> Table:
    table = _llama(keys) | {"schedule": f"full_loop({keys.size('num_loops')})"}
    if keys.flag("skip_loop_final_norm", False):
        return table
    return table | {"pass_norm": {"unit": "stack", "shared": True}}


NORMS = {"mixer_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
OLMO2_NORMS = {
    "mixer_post_norm": "post_attention_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}
"""The family's names of a layer's norms, by ours."""


def llama_pieces(config: ModelConfig, given: Source, *, norms: Mapping[str, str] = NORMS) -> Pieces:
    """The tensors of a model with the names of Llama."""
    pieces = {
        "embedding.weight": whole("model.embed_tokens.weight", config.vocab_size),
        "final_norm.weight": whole("model.norm.weight", config.d_model),
    }
    if not config.tied_head:
        pieces["head.weight"] = whole("lm_head.weight", config.vocab_size)
    for number in range(config.num_layers):
        pieces |= _layer_pieces(config, f"layers.{number}.", f"model.layers.{number}.", norms)
    return pieces


def _layer_pieces(config: ModelConfig, ours: str, theirs: str, norms: Mapping[str, str]) -> Pieces:
    attention: AttentionOptions = config.options["attention"]
    d_ffn, has_bias = config.options["swiglu"].d_ffn, config.options["swiglu"].bias
    d_kv = attention.kv_heads * attention.d_head
    rows = (attention.num_heads * attention.d_head, d_kv, d_kv)
    mixer, ffn = f"{theirs}self_attn.", f"{theirs}mlp."
    pieces = {
        f"{ours}{norm}.weight": whole(f"{theirs}{name}.weight", config.d_model)
        for norm, name in norms.items()
    }
    for kind, in_qkv, in_output, in_ffn in (
        ("weight", True, True, True),
        ("bias", attention.qkv_bias, attention.output_bias, has_bias),
    ):
        if in_qkv:
            pieces[f"{ours}mixer.qkv_proj.{kind}"] = stacked(mixer, "qkv", rows, f"_proj.{kind}")
        if in_output:
            name = f"{mixer}o_proj.{kind}"
            pieces[f"{ours}mixer.output_proj.{kind}"] = whole(name, config.d_model)
        if in_ffn:
            gate_up = stacked(ffn, ("gate", "up"), (d_ffn, d_ffn), f"_proj.{kind}")
            pieces[f"{ours}ffn.gate_up_proj.{kind}"] = gate_up
            name = f"{ffn}down_proj.{kind}"
            pieces[f"{ours}ffn.down_proj.{kind}"] = whole(name, config.d_model)
    if attention.query_key_norm != "none":
        per_head = attention.query_key_norm == "head"
        widths = (attention.d_head, attention.d_head) if per_head else (rows[0], d_kv)
        for ours_name, name, width in zip(("query", "key"), "qk", widths, strict=True):
            pieces[f"{ours}mixer.{ours_name}_norm.weight"] = whole(
                f"{mixer}{name}_norm.weight", width
            )
    return pieces


def without_loop(config: ModelConfig, like: Source) -> dict[str, Any]:
    """No keys: a model of this type runs each layer once."""
    if config.occurrences() != no_loop(config.num_layers):
        raise ValueError(
            f"a {like['model_type']} folder has no place for the schedule "
            f"{notation(config.occurrences())}; import it again without a schedule to export it"
        )
    return {}


def full_loop_count(key: str) -> Callable[[ModelConfig, Source], dict[str, Any]]:
    """A function that writes the number of passes over the whole stack under a key."""

    def write(config: ModelConfig, like: Source) -> dict[str, Any]:
        schedule = config.occurrences()
        num_passes = num_passes_of(schedule)
        if schedule != full_loop(config.num_layers, num_passes):
            raise ValueError(
                f"a {like['model_type']} folder has passes over the whole stack only, and the "
                f"schedule is {notation(schedule)}"
            )
        return {key: num_passes}

    return write


LLAMA_LIKE = (
    *(
        Family(model_type=model_type, read=read, pieces=llama_pieces, write_schedule=without_loop)
        for model_type, read in (
            ("llama", _llama),
            ("mistral", _mistral),
            ("qwen2", _qwen2),
            ("qwen3", _qwen3),
        )
    ),
    Family(
        model_type="olmo2",
        read=_olmo2,
        pieces=partial(llama_pieces, norms=OLMO2_NORMS),
        write_schedule=without_loop,
    ),
    Family(
        model_type="nanbeige",
        read=_nanbeige,
        pieces=llama_pieces,
        write_schedule=full_loop_count("num_loops"),
    ),
)
