"""Huginn: some layers once, a core of layers many times, some layers once.

Before each pass of the core a projection mixes its state with what entered the core. The state
starts at zero here, as Huginn's own code offers; it can also start as noise there.
"""

from typing import Any

from mixerloop.config import ModelConfig
from mixerloop.interop.families.family import Family, Keys, Piece, Pieces, Source, whole
from mixerloop.kinds import AttentionOptions
from mixerloop.notation import notation
from mixerloop.schedule import num_passes_of, prelude_core_coda

PARTS = {
    "prelude": "n_layers_in_prelude",
    "core_block": "n_layers_in_recurrent_block",
    "coda": "n_layers_in_coda",
}
"""The keys that count layers, by the names of the parts in a checkpoint."""
PASSES = "mean_recurrence"
NORMS = ("mixer_norm", "mixer_post_norm", "ffn_norm", "ffn_post_norm")
"""Our names of norm_1 to norm_4."""


def _read(keys: Keys) -> dict[str, Any]:
    num_prelude, num_coda = (keys.size(PARTS[part], least=0) for part in ("prelude", "coda"))
    num_core = keys.size(PARTS["core_block"])
    d_model = keys.size("n_embd")
    num_heads = keys.take("n_heads") or keys.size("num_attention_heads")
    keys.ignore("num_attention_heads", "n_layers", "block_size", "padding_multiple", "vocab_size")
    keys.ignore("init_strategy", "init_orthogonal", "effective_expected_depth", "hf_config", "name")
    keys.ignore("sampling_scheme", "mean_backprop_depth", "state_init", "test_time_noise_type")
    keys.must_be("test_time_noise", 0)
    keys.ignore("tie_word_embeddings", "activation_checkpoint_impl")
    keys.must_be("architecture_class_name", "RecurrentGPT")
    keys.must_be("block_class_name", "SandwichBlock")
    keys.must_be("norm_class_name", "RMSNorm_llama", "RMSNorm")
    keys.must_be("mlp_class_name", "GatedMLP")
    keys.must_be("nonlin_name", "SiLU")
    keys.must_be("injection_type", "linear")
    keys.must_be("bias", False)
    scales = keys.take("init_values", {})
    num_rows = keys.take("padded_vocab_size") or keys.size("vocab_size")
    return {
        "num_layers": num_prelude + num_core + num_coda,
        "d_model": d_model,
        "vocab_size": num_rows,
        "schedule": _notation(num_prelude, num_core, num_coda, keys.size(PASSES)),
        "norm_eps": keys.number("norm_eps"),
        "norm_placement": "after_add",
        "embedding_scale": float(scales.get("embed_scale", d_model**0.5)),
        "tied_head": keys.flag("tie_embeddings", True),
        "mixer": "attention",
        "attention": {
            "num_heads": num_heads,
            "d_head": keys.take("head_dim", d_model // num_heads),
            "num_kv_heads": keys.take("num_key_value_heads", num_heads),
            "rotary": "interleaved",
            "rotary_base": keys.number("rope_base", 50_000.0),
            "qkv_bias": keys.flag("qk_bias", False),
        },
        "swiglu": {"d_ffn": keys.size("intermediate_size")},
        "input_injection": {"unit": "stack"},
        "pass_norm": {"unit": "coda", "before": "every", "shared": True},
    }


def _notation(num_prelude: int, num_core: int, num_coda: int, num_passes: int) -> str:
    """The schedule as text, which is read only if it is short enough."""
    parts = [f"{num}x(A F)" if num else "" for num in (num_prelude, num_core, num_coda)]
    parts[1] = f"{num_passes}x({parts[1]})"
    return " ".join(filter(None, parts))


def _pieces(config: ModelConfig, given: Source) -> Pieces:
    attention: AttentionOptions = config.options["attention"]
    d_model, d_ffn = config.d_model, config.options["swiglu"].d_ffn
    d_inner = attention.num_heads * attention.d_head
    d_kv = attention.kv_heads * attention.d_head
    pieces = {
        "embedding.weight": whole("transformer.wte.weight", config.vocab_size),
        "final_norm.weight": whole("transformer.ln_f.weight", d_model),
        "input_injection.adapter.weight": whole("transformer.adapter.weight", d_model),
    }
    if not config.tied_head:
        pieces["head.weight"] = whole("lm_head.weight", config.vocab_size)
    for number, name in enumerate(_layer_names(given)):
        ours, theirs = f"layers.{number}.", f"transformer.{name}."
        for norm_number, norm in enumerate(NORMS, start=1):
            pieces[f"{ours}{norm}.weight"] = whole(f"{theirs}norm_{norm_number}.weight", d_model)
        pieces |= {
            f"{ours}mixer.qkv_proj.weight": whole(f"{theirs}attn.Wqkv.weight", d_inner + 2 * d_kv),
            f"{ours}mixer.output_proj.weight": whole(f"{theirs}attn.proj.weight", d_model),
            f"{ours}ffn.gate_up_proj.weight": whole(f"{theirs}mlp.fc.weight", 2 * d_ffn),
            f"{ours}ffn.down_proj.weight": whole(f"{theirs}mlp.proj.weight", d_model),
        }
        if attention.qkv_bias:  # of queries and keys; values have none
            shape = (2, 1, attention.num_heads, attention.d_head)
            pieces[f"{ours}mixer.qkv_proj.bias"] = (
                Piece(f"{theirs}attn.qk_bias", d_inner + d_kv, shape),
                Piece(None, d_kv),
            )
    return pieces


def _layer_names(given: Source) -> list[str]:
    return [f"{part}.{number}" for part, key in PARTS.items() for number in range(given[key])]


def _write_schedule(config: ModelConfig, like: Source) -> dict[str, Any]:
    schedule, num_passes = config.occurrences(), num_passes_of(config.occurrences())
    counts = [like[key] for key in PARTS.values()]
    if schedule != prelude_core_coda(
        num_prelude=counts[0], num_core=counts[1], num_coda=counts[2], num_passes=num_passes
    ):
        raise ValueError(
            f"a {like['model_type']} folder has passes over its core only, and the schedule is "
            f"{notation(schedule)}"
        )
    return {PASSES: num_passes}


HUGINN = Family(
    model_type="huginn_raven",
    read=_read,
    pieces=_pieces,
    write_schedule=_write_schedule,
    unused=("freqs_cis", "transformer.freqs_cis"),
)
