"""Pretrained folders: models of `transformers`, and oracles of Ouro, Huginn and Nanbeige."""

import errno
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import needs
from command_line import mixerloop
from mixerloop import runs
from mixerloop.interop.conversion import export_run, import_run
from mixerloop.interop.loading import load_any, open_subject
from mixerloop.interop.parents import open_parent
from mixerloop.model.decoding import advance, start
from mixerloop.notation import resolve
from mixerloop.ops.precision import compute_in
from mixerloop.training.fresh_run import init_run
from mixerloop.transport.measurement import Looking, measure_transport
from small_model import model_file
from training_sessions import go, twelve_steps, with_train

TRANSFORMERS = needs.package("transformers").mark
LOGITS, GRADIENTS = 1e-5, 1e-4  # float32, weights large enough that a bug shows
EXACT = {"rtol": 0, "atol": 1e-10}
"""For looped models in float64: three passes of loud weights amplify the rounding of float32."""
VOCAB, D_MODEL, D_FFN, HEADS, KV_HEADS, LAYERS = 40, 24, 40, 4, 2, 3
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": D_MODEL,
    "intermediate_size": D_FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 64,
}
THEIRS = {
    "llama": {"rope_theta": 500.0, "tie_word_embeddings": True},
    "llama, untied": {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-4},
    "llama, wide heads": {"head_dim": 16},
    "mistral": {"sliding_window": 5},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 8, "rope_theta": 1000.0},
    "olmo2": {"pad_token_id": None, "eos_token_id": None},
}
Shapes = dict[str, tuple[int, ...]]
TOKENS = torch.arange(26).reshape(2, 13) * 7 % VOCAB


def loud(module, *, scale=1.5):
    """Weights so large that a bug shows, and norms and biases that differ by channel."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise * scale / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(noise * 0.3)
    return module.eval()


def saved_by_transformers(name, folder, dtype=torch.float32):
    """A model of `transformers` with loud weights, and its folder."""
    from transformers import AutoConfig, AutoModelForCausalLM

    given = AutoConfig.for_model(name.split(",")[0], **SIZES, **THEIRS[name])
    model = AutoModelForCausalLM.from_config(given, attn_implementation="eager")
    loud(model).to(dtype).save_pretrained(folder)
    return model


@TRANSFORMERS
@pytest.mark.parametrize("name", THEIRS)
def test_models_of_transformers_compute_the_same_here(name, tmp_path):
    theirs = saved_by_transformers(name, tmp_path / "theirs")
    made = import_run(tmp_path / "theirs", tmp_path / "run")
    assert made.unused == ()
    ours = load_any(tmp_path / "run", form="torch").model
    assert made.parameters == theirs.num_parameters()
    wanted = theirs(TOKENS).logits
    torch.testing.assert_close(ours(TOKENS), wanted, rtol=0, atol=LOGITS)

    for logits in (ours(TOKENS), wanted):
        F.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()).backward()
    names = {"model.embed_tokens": "embedding", "model.norm": "final_norm"}
    for number in range(LAYERS):
        prefix, layer = f"model.layers.{number}", f"layers.{number}"
        names[f"{prefix}.self_attn.o_proj"] = f"{layer}.mixer.output_proj"
        names[f"{prefix}.self_attn.q_proj"] = f"{layer}.mixer.qkv_proj"  # its first rows
        names[f"{prefix}.mlp.down_proj"] = f"{layer}.ffn.down_proj"
    for their_name, our_name in names.items():
        wanted_gradient = theirs.get_parameter(f"{their_name}.weight").grad
        gradient = ours.get_parameter(f"{our_name}.weight").grad
        assert gradient is not None
        torch.testing.assert_close(
            gradient[: len(wanted_gradient)], wanted_gradient, rtol=GRADIENTS, atol=GRADIENTS
        )


def assert_same_folders(one, other):
    """The same tensors, types and config.json."""
    before, after = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert value.dtype == after[name].dtype
        assert torch.equal(value, after[name]), name
    configs = [json.loads((folder / "config.json").read_text()) for folder in (one, other)]
    assert configs[0] == configs[1]


@TRANSFORMERS
@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.float32) for name in THEIRS), ("qwen3", torch.bfloat16)]
)
def test_a_folder_comes_back_bit_for_bit(name, dtype, tmp_path):
    saved_by_transformers(name, tmp_path / "theirs", dtype)
    import_run(tmp_path / "theirs", tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "again")
    assert_same_folders(tmp_path / "theirs", tmp_path / "again")
    assert load_file(tmp_path / "again" / "model.safetensors")["model.norm.weight"].dtype == dtype


# --- weights in bfloat16 --------------------------------------------------------------------------


def test_bfloat16_weights_stay_in_the_mapped_file_for_bfloat16_products(tmp_path):
    write_looped("ouro", tmp_path / "theirs", dtype=torch.bfloat16)
    import_run(tmp_path / "theirs", tmp_path / "run")
    narrow = open_subject(tmp_path / "run", compute_dtype="bfloat16", keep=False).model
    wide = open_subject(tmp_path / "run", keep=False).model
    for name, parameter in narrow.named_parameters():
        assert torch.equal(parameter.float(), wide.get_parameter(name))
        matrix = parameter.ndim == 2
        assert parameter.dtype == (torch.bfloat16 if matrix else torch.float32)
    with compute_in("bfloat16", "cpu"), torch.no_grad():
        assert torch.equal(narrow(TOKENS), wide(TOKENS))
        state, steps = start(narrow, batch=2), []
        for column in TOKENS.split(1, dim=1):
            logits, state = advance(narrow, column, state)
            steps.append(logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), wide(TOKENS), rtol=0, atol=0.5)
    assert wide.embedding.weight.dtype == torch.float32


MEASURE = """
import resource, sys
from mixerloop.interop.conversion import import_run
import_run(sys.argv[1], sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
@pytest.mark.data
@needs.PROC.mark
def test_importing_a_large_folder_needs_little_more_memory_than_its_size(tmp_path):
    """1.4 billion parameters in bfloat16, in Ouro's shape."""
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "vocab_size": 49_152}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": 24}
    shapes = ouro_shapes(width=2048, inner=5632, vocab=49_152, layers=24)
    folder, where, size = tmp_path / "theirs", {}, 0
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(OURO | sizes | heads))
    generator = torch.Generator().manual_seed(0)
    for shard in range(8):
        file = f"model-{shard}.safetensors"
        tensors = {}
        for name in sorted(shapes)[shard::8]:
            bits = torch.randint(2**14, shapes[name], dtype=torch.int16, generator=generator)
            tensors[name] = bits.view(torch.bfloat16)  # small numbers
            size += tensors[name].nbytes
        save_file(tensors, folder / file)
        where |= dict.fromkeys(tensors, file)
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    command = [sys.executable, "-c", MEASURE, str(folder), str(tmp_path / "run")]
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert size > 2.8e9
    assert peak < 1.2 * size


# --- looped models, against their equations -------------------------------------------------------


def rms(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def turned(x, base, *, interleaved):
    """Rotary positions of x [batch, heads, seq, width], as complex numbers."""
    half = x.shape[-1] // 2
    frequencies = base ** (-torch.arange(half, dtype=torch.float64) / half)
    frequencies = frequencies.float().to(x.dtype)  # float32 is the type of our frequencies
    angles = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * frequencies
    turn = torch.polar(torch.ones_like(angles), angles)
    pairs = x.unflatten(-1, (half, 2)) if interleaved else x.unflatten(-1, (2, half)).mT
    moved = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    return moved.flatten(-2) if interleaved else moved.mT.flatten(-2)


def attend(q, k, v, *, base, interleaved):
    """Causal softmax attention of [batch, seq, heads, width], written out."""
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    q, k = (turned(part, base, interleaved=interleaved) for part in (q, k))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    read = scores.masked_fill(ahead, -torch.inf).softmax(-1) @ v
    return read.transpose(1, 2).flatten(2)


def random_tensors(shapes):
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        matrix = len(shape) == 2
        tensors[name] = noise * 1.5 / shape[-1] ** 0.5 if matrix else 1 + 0.3 * noise
    return tensors


def write_folder(folder, tensors, config, *, shards=1):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    names, where = sorted(tensors), {}
    for shard in range(shards):
        file = f"model-{shard}.safetensors"
        save_file({name: tensors[name] for name in names[shard::shards]}, folder / file)
        where |= dict.fromkeys(names[shard::shards], file)
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


OURO = {
    "model_type": "ouro",
    **{key: value for key, value in SIZES.items() if key != "num_key_value_heads"},
    "num_key_value_heads": HEADS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "total_ut_steps": 3,
    "early_exit_threshold": 1.0,
}


def ouro_shapes(*, vocab=VOCAB, width=D_MODEL, inner=D_FFN, layers=LAYERS) -> Shapes:
    shapes: Shapes = {"model.embed_tokens.weight": (vocab, width), "lm_head.weight": (vocab, width)}
    shapes["model.norm.weight"] = (width,)
    shapes |= {"model.early_exit_gate.weight": (1, width), "model.early_exit_gate.bias": (1,)}
    for number in range(layers):
        layer = f"model.layers.{number}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes |= {f"{layer}{norm}.weight": (width,), f"{layer}{norm}_2.weight": (width,)}
        for name in "qkvo":
            shapes[f"{layer}self_attn.{name}_proj.weight"] = (width, width)
        for name in ("gate", "up"):
            shapes[f"{layer}mlp.{name}_proj.weight"] = (inner, width)
        shapes[f"{layer}mlp.down_proj.weight"] = (width, inner)
    return shapes


def ouro_by_hand(w, tokens, *, num_passes):
    """x + n2(f(n1 x)) in each layer; the final norm after each pass over all layers."""
    h = w["model.embed_tokens.weight"][tokens]
    for _ in range(num_passes):
        for number in range(LAYERS):
            layer = f"model.layers.{number}."

            def normed(x, name, layer=layer):
                return rms(x, w[f"{layer}{name}.weight"], 1e-6)

            def project(x, name, layer=layer):
                return x @ w[f"{layer}{name}_proj.weight"].T

            x = normed(h, "input_layernorm")
            heads = [project(x, f"self_attn.{n}").unflatten(-1, (HEADS, -1)) for n in "qkv"]
            read = attend(*heads, base=1e6, interleaved=False)
            h = h + normed(project(read, "self_attn.o"), "input_layernorm_2")
            x = normed(h, "post_attention_layernorm")
            x = project(F.silu(project(x, "mlp.gate")) * project(x, "mlp.up"), "mlp.down")
            h = h + normed(x, "post_attention_layernorm_2")
        h = rms(h, w["model.norm.weight"], 1e-6)
    return h @ w["lm_head.weight"].T


HUGINN = {
    "model_type": "huginn_raven",
    "n_embd": D_MODEL,
    "n_heads": HEADS,
    "num_key_value_heads": HEADS,
    "intermediate_size": D_FFN,
    "n_layers": 4,
    "n_layers_in_prelude": 1,
    "n_layers_in_recurrent_block": 2,
    "n_layers_in_coda": 1,
    "mean_recurrence": 3,
    "vocab_size": VOCAB,
    "padded_vocab_size": VOCAB,
    "norm_eps": 1e-6,
    "rope_base": 50_000,
    "qk_bias": True,
    "bias": False,
    "tie_embeddings": True,
    "injection_type": "linear",
    "state_init": "zero",
    "init_values": {"embed_scale": D_MODEL**0.5, "std": 0.1},
}
HUGINN_LAYERS = ("prelude.0", "core_block.0", "core_block.1", "coda.0")


def huginn_tensors():
    shapes: Shapes = {
        "transformer.wte.weight": (VOCAB, D_MODEL),
        "transformer.ln_f.weight": (D_MODEL,),
    }
    shapes["transformer.adapter.weight"] = (D_MODEL, 2 * D_MODEL)
    for name in HUGINN_LAYERS:
        layer = f"transformer.{name}."
        shapes |= {f"{layer}norm_{number}.weight": (D_MODEL,) for number in range(1, 5)}
        shapes[f"{layer}attn.Wqkv.weight"] = (3 * D_MODEL, D_MODEL)
        shapes[f"{layer}attn.qk_bias"] = (2, 1, HEADS, D_MODEL // HEADS)
        shapes[f"{layer}attn.proj.weight"] = (D_MODEL, D_MODEL)
        shapes[f"{layer}mlp.fc.weight"] = (2 * D_FFN, D_MODEL)
        shapes[f"{layer}mlp.proj.weight"] = (D_MODEL, D_FFN)
    return random_tensors(shapes)


def huginn_by_hand(w, tokens, *, num_passes):
    """n2(x + f(n1 x)) in each layer; the adapter before each pass of the core; ln_f twice."""

    def run(h, name):
        layer = f"transformer.{name}."
        norms = [w[f"{layer}norm_{number}.weight"] for number in range(1, 5)]
        x = rms(h, norms[0], 1e-6) @ w[f"{layer}attn.Wqkv.weight"].T
        q, k, v = (part.unflatten(-1, (HEADS, -1)) for part in x.chunk(3, dim=-1))
        q_bias, k_bias = w[f"{layer}attn.qk_bias"]
        read = attend(q + q_bias, k + k_bias, v, base=50_000.0, interleaved=True)
        h = rms(h + read @ w[f"{layer}attn.proj.weight"].T, norms[1], 1e-6)
        gate, up = (rms(h, norms[2], 1e-6) @ w[f"{layer}mlp.fc.weight"].T).chunk(2, dim=-1)
        return rms(h + (F.silu(gate) * up) @ w[f"{layer}mlp.proj.weight"].T, norms[3], 1e-6)

    entered = run(w["transformer.wte.weight"][tokens] * D_MODEL**0.5, "prelude.0")
    state = torch.zeros_like(entered)
    for _ in range(num_passes):
        state = torch.cat([state, entered], dim=-1) @ w["transformer.adapter.weight"].T
        for name in ("core_block.0", "core_block.1"):
            state = run(state, name)
    h = run(rms(state, w["transformer.ln_f.weight"], 1e-6), "coda.0")
    return rms(h, w["transformer.ln_f.weight"], 1e-6) @ w["transformer.wte.weight"].T


LOOPED = {
    "ouro": (
        OURO,
        lambda: random_tensors(ouro_shapes()),
        ouro_by_hand,
        "3x(3x(A F))",
        "full_loop(2)",
    ),
    "huginn": (
        HUGINN,
        huginn_tensors,
        huginn_by_hand,
        "A F 3x(2x(A F)) A F",
        "A F 2x(2x(A F)) A F",
    ),
}


def write_looped(name, folder, *, shards=1, dtype=torch.float32, **keys):
    """A folder of a looped model, and its tensors."""
    config, make, *_ = LOOPED[name]
    tensors = {key: tensor.to(dtype) for key, tensor in make().items()}
    write_folder(folder, tensors, config | keys, shards=shards)
    return tensors


@pytest.fixture
def ouro(tmp_path):
    """The folder of an Ouro."""
    write_looped("ouro", tmp_path / "theirs")
    return tmp_path / "theirs"


@pytest.mark.parametrize(("name", "shards"), [("ouro", 1), ("huginn", 3)])
def test_looped_models_follow_their_equations(name, shards, tmp_path):
    *_, by_hand, schedule, fewer = LOOPED[name]
    tensors = write_looped(name, tmp_path / "theirs", shards=shards)
    made = import_run(tmp_path / "theirs", tmp_path / "run")
    assert made.schedule == schedule
    model = load_any(tmp_path / "run", form="torch").model.double()
    exact = {key: tensor.double() for key, tensor in tensors.items()}
    whole = model(TOKENS)
    torch.testing.assert_close(whole, by_hand(exact, TOKENS, num_passes=3), **EXACT)
    other = resolve(fewer, model.config.num_layers)
    wanted = by_hand(exact, TOKENS, num_passes=2)
    torch.testing.assert_close(model(TOKENS, schedule=other), wanted, **EXACT)
    state, steps = start(model, batch=2), []
    for column in TOKENS.split(1, dim=1):
        logits, state = advance(model, column, state)
        steps.append(logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, **EXACT)


@pytest.mark.parametrize("name", LOOPED)
def test_looped_folders_come_back_bit_for_bit(name, tmp_path):
    tensors = write_looped(name, tmp_path / "theirs")
    made = import_run(tmp_path / "theirs", tmp_path / "run")
    assert list(made.unused) == sorted(key for key in tensors if "early_exit_gate" in key)
    export_run(tmp_path / "run", tmp_path / "again")
    assert_same_folders(tmp_path / "theirs", tmp_path / "again")
    export_run(tmp_path / "theirs", tmp_path / "copy")  # a folder, which was never a run
    assert_same_folders(tmp_path / "theirs", tmp_path / "copy")


@TRANSFORMERS
@pytest.mark.parametrize("skips_norm", [True, False])
def test_nanbeige_is_a_llama_whose_layers_run_twice(skips_norm, tmp_path):
    from transformers import AutoConfig, LlamaForCausalLM

    # Its norms compute in float32 always, and a second pass amplifies their rounding.
    config = AutoConfig.for_model("llama", **SIZES, attn_implementation="eager")
    llama = loud(LlamaForCausalLM(config), scale=1.0)
    llama.save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    loops = {"model_type": "nanbeige", "num_loops": 2, "skip_loop_final_norm": skips_norm}
    path.write_text(json.dumps(json.loads(path.read_text()) | loops))
    made = import_run(tmp_path / "theirs", tmp_path / "run")
    assert made.schedule == "2x(3x(A F))"

    ours = load_any(tmp_path / "run", form="torch").model.double()
    core = llama.double().model
    own = ours.get_buffer("layers.0.mixer.rotary.frequencies")  # theirs differ in a last bit
    core.rotary_emb.get_buffer("inv_freq").copy_(own)
    h = core.embed_tokens(TOKENS)
    positions = torch.arange(TOKENS.shape[1])[None]
    angles = core.rotary_emb(h, positions)
    mask = torch.full((TOKENS.shape[1],) * 2, -torch.inf).triu(1)[None, None]
    for loop in range(2):
        for layer in core.layers:
            h = layer(h, attention_mask=mask, position_embeddings=angles)
        if loop == 0 and not skips_norm:
            h = core.norm(h)
    wanted = llama.lm_head(core.norm(h))
    torch.testing.assert_close(ours(TOKENS), wanted, rtol=0, atol=LOGITS)


# --- what is rejected -----------------------------------------------------------------------------

LLAMA = {
    "model_type": "llama",
    **SIZES,
    "num_key_value_heads": HEADS,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


def llama_tensors():
    tensors = random_tensors(ouro_shapes())
    return {name: w for name, w in tensors.items() if "_2." not in name and "exit" not in name}


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"model_type": "lama"}, "model_type 'lama' is not known here; did you mean llama"),
        ({"model_type": None}, "model_type 'None' is not known here"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu': our models have 'silu'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_type = 'llama3'"),
        ({"rope_parameters": {"rope_theta": 1e4, "factor": 2}}, "our models have a base only"),
        ({"intermediate_size": None}, "intermediate_size is missing"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers = '3': not a whole number"),
        ({"residual_scale": 2.0}, "unknown key residual_scale"),
        ({"attention_bias": True}, "missing model.layers.0.self_attn"),
        ({"intermediate_size": 39}, r"has the shape \[40, 24\], not \[39, 24\]"),
        ({"num_hidden_layers": 2}, "unexpected model.layers.2"),
        ({"tie_word_embeddings": True}, "lm_head.weight is not the embedding"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"sliding_window": 4}, "sliding_window = 4: our models have None"),
        (
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"rope_type": "yarn"}},
            "rope_type = 'yarn'",
        ),
        ({"num_attention_heads": 0}, "num_attention_heads must be at least 1"),
        ({"head_dim": "x"}, "d_head"),
    ],
)
def test_what_does_not_fit_is_rejected_by_name(keys, problem, tmp_path):
    write_folder(tmp_path / "theirs", llama_tensors(), LLAMA | keys)
    with pytest.raises(ValueError, match=problem):
        import_run(tmp_path / "theirs", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_key_that_has_no_effect_can_be_ignored(tmp_path):
    write_folder(tmp_path / "theirs", llama_tensors(), LLAMA | {"their_note": 1})
    import_run(tmp_path / "theirs", tmp_path / "run", ignore_keys=["their_note"])
    with pytest.raises(ValueError, match="ignored key nope is not there"):
        import_run(tmp_path / "theirs", tmp_path / "other", ignore_keys=["nope"])


def test_types_of_one_matrix_are_widened_and_other_types_are_rejected(tmp_path):
    llama, query = llama_tensors(), "model.layers.0.self_attn.q_proj.weight"
    write_folder(tmp_path / "mixed", llama | {query: llama[query].bfloat16()}, LLAMA)
    import_run(tmp_path / "mixed", tmp_path / "run")
    qkv = load_any(tmp_path / "run").model.get_parameter("layers.0.mixer.qkv_proj.weight")
    assert torch.equal(qkv[:D_MODEL], llama[query].bfloat16().float())
    write_folder(tmp_path / "wide", llama | {query: llama[query].double()}, LLAMA)
    with pytest.raises(
        ValueError, match=r"wide: model\.layers\.0\.self_attn\.q_proj\.weight is F64"
    ):
        import_run(tmp_path / "wide", tmp_path / "other")


def test_values_that_are_not_finite_are_counted_by_name(tmp_path):
    llama = llama_tensors()
    llama["model.norm.weight"][3] = torch.inf
    llama["model.layers.0.self_attn.k_proj.weight"][0, :2] = torch.nan
    write_folder(tmp_path / "theirs", llama, LLAMA)
    said = mixerloop("import", "theirs", "--out", "run", cwd=tmp_path).stderr
    assert said == (
        "warning: values that are NaN or infinite: 1 of final_norm.weight; "
        "2 of layers.0.mixer.qkv_proj.weight\n"
    )
    (tmp_path / "small.toml").write_text(model_file())
    init_run(str(tmp_path / "small.toml"), tmp_path / "fresh")
    export_run(tmp_path / "fresh", tmp_path / "ours")
    weights = load_file(tmp_path / "ours" / "model.safetensors")
    weights["model.norm.weight"][3] = torch.nan
    save_file(weights, tmp_path / "ours" / "model.safetensors")
    (tmp_path / "ours" / "contents.json").unlink()
    again = import_run(tmp_path / "ours", tmp_path / "again")
    assert again.not_finite == {"final_norm.weight": 1}


def test_a_missing_shard_is_named(tmp_path):
    write_looped("ouro", tmp_path / "theirs", shards=2)
    (tmp_path / "theirs" / "model-1.safetensors").unlink()
    for use in (load_any, open_parent):
        with pytest.raises(ValueError, match=r"model-1\.safetensors is not in this folder"):
            use(tmp_path / "theirs")


def test_transport_in_bfloat16_of_narrow_weights(tmp_path, hops_data):
    write_looped("ouro", tmp_path / "theirs", dtype=torch.bfloat16)
    import_run(tmp_path / "theirs", tmp_path / "run")
    subject = open_subject(tmp_path / "run", compute_dtype="bfloat16", keep=False)
    result = measure_transport(subject, Looking(windows=2, positions=2), data=hops_data)
    assert result.intact_max_abs_error == 0


def test_a_damaged_gguf_file_is_one_line(tmp_path):
    needs.package("gguf").or_skip()
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + b"\x03\0\0\0" + b"\xff" * 8)
    with pytest.raises(ValueError, match=r"model\.gguf: transformers cannot read it"):
        import_run(tmp_path / "model.gguf", tmp_path / "run")


def write_gguf(path, *, without=(), also=(), settings=()):
    """A Llama of two layers, with a tokenizer of single characters."""
    from gguf import GGUFWriter

    d_model, d_ffn, letters = 16, 24, [chr(number) for number in range(97, 123)]
    rows = len(letters) + 4  # the reader of the tokenizer adds tokens of its own
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(d_model)
    writer.add_feed_forward_length(d_ffn)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(rows)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<s>", "</s>", *letters])
    writer.add_token_scores([0.0] * (len(letters) + 2))
    writer.add_token_merges([])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for key, value in settings:
        if isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_float32(key, value)
    shapes = {"token_embd.weight": (rows, d_model), "output_norm.weight": (d_model,)}
    for layer in range(2):
        of_layer = {
            **{f"attn_{name}": (d_model, d_model) for name in ("q", "k", "v", "output")},
            **{"ffn_gate": (d_ffn, d_model), "ffn_up": (d_ffn, d_model)},
            **{"ffn_down": (d_model, d_ffn), "attn_norm": (d_model,), "ffn_norm": (d_model,)},
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    generator = np.random.default_rng(0)
    for name, shape in {**shapes, **dict(also)}.items():
        if name not in without:
            writer.add_tensor(name, generator.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_imported(tmp_path):
    needs.package("gguf").or_skip()
    write_gguf(tmp_path / "model.gguf")
    for name in ("run", "again"):
        import_run(tmp_path / "model.gguf", tmp_path / name)
    first, again = (load_any(tmp_path / name).model.state_dict() for name in ("run", "again"))
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"without": ["blk.1.ffn_down.weight"]}, r"missing blk\.1\.ffn_down\.weight"),
        ({"without": ["token_embd.weight"]}, r"missing token_embd\.weight"),
        ({"also": [("blk.0.attn_q.bias", (16,))]}, r"unexpected blk\.0\.attn_q\.bias"),
        ({"also": [("rope_freqs.weight", (4,))]}, r"unexpected rope_freqs\.weight"),
        (
            {"settings": [("llama.rope.scaling.type", "linear")]},
            r"llama\.rope\.scaling\.type = linear is read as none",
        ),
        (
            {"settings": [("llama.rope.scaling.factor", 4.0)]},
            r"llama\.rope\.scaling\.factor = 4\.0 is read as 1\.0",
        ),
    ],
)
def test_what_transformers_would_not_read_of_a_gguf_file_is_named(tmp_path, changes, problem):
    needs.package("gguf").or_skip()
    write_gguf(tmp_path / "model.gguf", **changes)
    with pytest.raises(ValueError, match=rf"model\.gguf: transformers would not .*{problem}"):
        import_run(tmp_path / "model.gguf", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_errors_name_the_folder_of_the_user_and_no_temporary_folder(ouro, tmp_path):
    with pytest.raises(ValueError, match=r"theirs/config\.json: model\.schedule") as raised:
        import_run(ouro, tmp_path / "run", layers=[0, 1], schedule="5x(A F)")
    assert str(tmp_path) in str(raised.value)


def test_weights_that_do_not_fit_on_the_disk_are_named(ouro, tmp_path, monkeypatch):
    """A file that was cut off must not be sealed."""

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as raised:
        import_run(ouro, tmp_path / "run")
    assert raised.value.filename.endswith("model.safetensors")
    assert not (tmp_path / "run").exists()


def test_a_loop_round_other_layers_than_those_of_the_norm_is_rejected(ouro, tmp_path):
    import_run(ouro, tmp_path / "run")
    open_subject(tmp_path / "run", schedule="no_loop", keep=False)
    open_subject(tmp_path / "run", schedule="full_loop(2)", keep=False)
    for schedule in ("mixer_loop(2)", "A F (A F)2 A F"):
        with pytest.raises(ValueError, match="pass_norm belongs to the loop of"):
            open_subject(tmp_path / "run", schedule=schedule, keep=False)
    import_run(ouro, tmp_path / "mixers", schedule="mixer_loop(2)")
    open_subject(tmp_path / "mixers", keep=False)


def test_a_huginn_with_a_huge_number_of_passes_is_rejected_at_once(tmp_path):
    write_looped("huginn", tmp_path / "theirs", mean_recurrence=10**9)
    with pytest.raises(ValueError, match=r"model\.schedule"):
        import_run(tmp_path / "theirs", tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "schedule", "problem"),
    [
        ("ouro", "mixer_loop(2)", "passes over the whole stack only"),
        ("huginn", "A F (A F)2 A F A F", "core only"),
    ],
)
def test_a_schedule_without_a_place_in_the_layout_is_not_exported(
    name, schedule, problem, tmp_path
):
    write_looped(name, tmp_path / "theirs")
    import_run(tmp_path / "theirs", tmp_path / "run", schedule=schedule)
    with pytest.raises(ValueError, match=problem):
        export_run(tmp_path / "run", tmp_path / "again")


def trained_further(run, parent, data, **model):
    """The weights of a run of a parent after a step."""
    config = twelve_steps(data, parent.model.changed(**model))
    go(run, with_train(config, steps=1, warmup_steps=0, evaluate_windows=1), parent=parent)
    return load_file(runs.checkpoint_folder(run, 1) / "model.safetensors")


def test_a_run_that_was_trained_further_is_exported_in_the_layout_of_its_import(
    tmp_path, hops_data
):
    tensors = write_looped(
        "ouro", tmp_path / "theirs", dtype=torch.bfloat16, torch_dtype="bfloat16"
    )
    import_run(tmp_path / "theirs", tmp_path / "run")
    child, grandchild = tmp_path / "child", tmp_path / "grandchild"
    trained_further(child, open_parent(tmp_path / "run"), hops_data)
    ours = trained_further(grandchild, open_parent(child), hops_data, schedule="full_loop(2)")
    export_run(grandchild, tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert again.keys() == tensors.keys()
    down = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(again[down], ours["layers.1.ffn.down_proj.weight"])
    for name in tensors:
        assert again[name].dtype == torch.float32
        assert torch.equal(again[name], tensors[name].float()) == ("early_exit_gate" in name), name
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    assert written == OURO | {"torch_dtype": "float32", "total_ut_steps": 2}
    back = load_any(tmp_path / "again", form="torch").model(TOKENS)
    assert torch.equal(back, load_any(grandchild, form="torch").model(TOKENS))


def test_a_folder_that_was_trained_further_without_an_import_is_exported_too(
    ouro, tmp_path, hops_data
):
    trained_further(tmp_path / "child", open_parent(ouro), hops_data)
    export_run(tmp_path / "child", tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert again.keys() == ouro_shapes().keys()
    record = runs.checkpoint_folder(tmp_path / "child", 0) / runs.IMPORTED
    record.write_text(record.read_text().replace("ouro", "Ouro"))
    with pytest.raises(ValueError, match=r"imported\.json: damaged"):
        export_run(tmp_path / "child", tmp_path / "damaged")


def test_a_model_that_has_outgrown_the_layout_is_not_exported_in_it(ouro, tmp_path, hops_data):
    trained_further(tmp_path / "child", open_parent(ouro), hops_data, pass_residual="stack")
    with pytest.raises(ValueError, match="attention"):
        export_run(tmp_path / "child", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_some_layers_make_a_smaller_model_of_the_same_layout(tmp_path):
    tensors = write_looped("ouro", tmp_path / "theirs", shards=2)
    made = import_run(tmp_path / "theirs", tmp_path / "run", layers=[2, 0, 2, 1])
    assert made.schedule == "3x(4x(A F))"
    export_run(tmp_path / "run", tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    outside = {name for name in tensors if ".layers." not in name}
    names = {name.split(".", 3)[3] for name in tensors.keys() - outside}
    assert len(again) == len(outside) + 4 * len(names)
    assert all(torch.equal(again[name], tensors[name]) for name in outside)
    for new, old in enumerate([2, 0, 2, 1]):
        for name in names:
            assert torch.equal(
                again[f"model.layers.{new}.{name}"], tensors[f"model.layers.{old}.{name}"]
            )
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    assert written == OURO | {"num_hidden_layers": 4}


@pytest.mark.parametrize(
    ("name", "layers", "problem"),
    [
        ("ouro", [0, 3], "theirs: layers: there is no layer 3; 0 to 2 are there"),
        ("ouro", [-1], "there is no layer -1"),
        ("ouro", [], "no layer is chosen"),
        ("huginn", [0], "theirs: layers cannot be chosen: its layers are not"),
    ],
)
def test_layers_that_are_not_there_are_rejected(name, layers, problem, tmp_path):
    write_looped(name, tmp_path / "theirs")
    with pytest.raises(ValueError, match=problem):
        import_run(tmp_path / "theirs", tmp_path / "run", layers=layers)
    assert not (tmp_path / "run").exists()
