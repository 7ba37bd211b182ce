"""The released files go in and come out as they were, and compute what their authors compute.

Each config has exactly the keys of a published file. `test_shrunk` has small sizes in them; with
$MIXERLOOP_RELEASED the published files themselves are read. Weights are drawn under the authors'
names and in their shapes.
"""

import json
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import needs
from command_line import mixerloop
from mixerloop.config import PRESETS
from mixerloop.interop.folders import read_exported
from mixerloop.interop.released_config import model_config
from mixerloop.schedule import LOOPS

FLOAT64_AGREES = 1e-12
COMMON = {
    "attn_mode": "chunk",
    "bos_token_id": 1,
    "conv_size": 4,
    "eos_token_id": 2,
    "expand_v": 1.0,
    "fuse_cross_entropy": True,
    "fuse_linear_cross_entropy": False,
    "fuse_norm": True,
    "fuse_swiglu": True,
    "head_dim": 8,
    "hidden_act": "swish",
    "hidden_ratio": 4,
    "hidden_size": 24,
    "initializer_range": 0.02,
    "intermediate_size": 40,
    "max_position_embeddings": 256,
    "norm_eps": 1e-5,
    "num_heads": 2,
    "num_hidden_layers": 3,
    "tie_word_embeddings": True,
    "use_cache": False,
    "vocab_size": 50,
}


def of_kind(model_type, name, **keys):
    return {**COMMON, "architectures": [f"{name}ForCausalLM"], "model_type": model_type, **keys}


FIRST = {"loop_count": 4, "use_residual": True}
FIRST_KINDS = ("gdn", "mixerloop", "fullloop", "ffnloop")
SHRUNK = {
    "gdn": of_kind("gated_deltanet", "GatedDeltaNet", use_gate=True, use_short_conv=True),
    "mixerloop": of_kind("mixerloop", "MixerLoop", **FIRST),
    "fullloop": of_kind("fullloop", "FullLoop", **FIRST),
    "ffnloop": of_kind("ffnloop", "FFNLoop", **FIRST),
    "mixerloop, later": of_kind("mixerloop", "MixerLoop", loop_count=4),
}
SHRUNK |= {
    "mixerloop, wide values": SHRUNK["mixerloop"] | {"expand_v": 2.0, "allow_neg_eigval": True},
    "gdn, narrow values": SHRUNK["gdn"] | {"expand_v": 0.5},
}
"""Options of flash-linear-attention that no published file uses."""
PUBLISHED = [
    *(f"first_release/{kind}_{size}" for size in ("15m", "110m") for kind in FIRST_KINDS),
    *(f"later/mixerloop_{size}" for size in ("15m", "105m", "328m", "604m")),
]


def names_of(config):
    """What the parts of a layer are called."""
    return ("attn", "mlp_norm", "mlp") if "use_gate" in config else ("mixer", "ffn_norm", "ffn")


def fresh_tensors(config, *, std=0.02):
    """Weights under the authors' names; everything is drawn, so that nothing is a no-op."""
    generator = torch.Generator().manual_seed(0)
    width, heads, d_head = (config[key] for key in ("hidden_size", "num_heads", "head_dim"))
    d_value = int(d_head * config["expand_v"])
    keys, inner, d_ffn = heads * d_head, heads * d_value, config["intermediate_size"]
    rows = {"q": keys, "k": keys, "v": inner, "g": inner}

    def normal(*shape, mean=0.0, std=std):
        return torch.randn(*shape, generator=generator) * std + mean

    tensors = {
        "model.embeddings.weight": normal(config["vocab_size"], width),
        "model.norm.weight": normal(width, mean=1, std=0.1),
    }
    if config.get("use_residual"):
        tensors["model.residual_weight"] = normal(config["loop_count"], width, std=0.3)
    mixer, ffn_norm, ffn = names_of(config)
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        for norm in ("attn_norm", ffn_norm):
            tensors[f"{layer}.{norm}.weight"] = normal(width, mean=1, std=0.1)
        for name in "qkvg":
            tensors[f"{layer}.{mixer}.{name}_proj.weight"] = normal(rows[name], width)
        for name in "ab":
            tensors[f"{layer}.{mixer}.{name}_proj.weight"] = normal(heads, width)
        for name in "qkv":
            tensors[f"{layer}.{mixer}.{name}_conv1d.weight"] = normal(rows[name], 1, 4, std=0.5)
        tensors[f"{layer}.{mixer}.o_proj.weight"] = normal(width, inner)
        tensors[f"{layer}.{mixer}.o_norm.weight"] = normal(d_value, mean=1, std=0.1)
        tensors[f"{layer}.{mixer}.A_log"] = normal(heads, std=0.5)
        tensors[f"{layer}.{mixer}.dt_bias"] = normal(heads, mean=-2, std=0.5)
        tensors[f"{layer}.{ffn}.gate_proj.weight"] = normal(d_ffn, width)
        tensors[f"{layer}.{ffn}.up_proj.weight"] = normal(d_ffn, width)
        tensors[f"{layer}.{ffn}.down_proj.weight"] = normal(width, d_ffn)
    return tensors


def write(folder, config, tensors):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def check_there_and_back(place, config):
    """Import, describe, generate, export: the same keys, values and bytes."""
    tensors = fresh_tensors(config)
    released = write(place / "released", config, tensors)
    kind: str = config["model_type"]
    loop = "no_loop" if kind == "gated_deltanet" else kind.replace("loop", "_loop")

    def answer(*words):
        return json.loads(mixerloop(*words, "--json").stdout)

    found = answer("import", released, "--out", place / "run")
    assert found["parameters"] == sum(tensor.numel() for tensor in tensors.values())
    described = answer("describe", released)
    assert described["parameters"] == found["parameters"]
    _, read = read_exported(released)
    expected = LOOPS[loop](config["num_hidden_layers"], config.get("loop_count", 1))
    assert read.model.occurrences() == expected
    for folder in (released, place / "run"):
        mixerloop("generate", folder, "--prompt-tokens", 1, 5, "--max-tokens", 2)
    answer("export", place / "run", "--to", "hf", "--out", place / "back")
    assert json.loads((place / "back" / "config.json").read_text()) == config
    back = load_file(place / "back" / "model.safetensors")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(back[name], tensor), name


@pytest.mark.parametrize("name", SHRUNK)
def test_shrunk_there_and_back(name, tmp_path):
    check_there_and_back(tmp_path, SHRUNK[name])


@pytest.mark.parametrize(
    ("width", "ratio", "expected"), [(288, 4, 768), (768, 4, 2048), (24, 4, 256), (1024, 3, 2048)]
)
def test_the_width_of_an_ffn_follows_from_the_ratio_where_it_is_not_given(width, ratio, expected):
    config = SHRUNK["gdn"] | {"hidden_size": width, "hidden_ratio": ratio}
    del config["intermediate_size"]
    assert model_config(config).options["swiglu"].d_ffn == expected


@pytest.mark.slow
@pytest.mark.data
@needs.RELEASED.mark
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_there_and_back(name, tmp_path):
    config = json.loads((Path(os.environ[needs.RELEASED_VARIABLE]) / f"{name}.json").read_text())
    check_there_and_back(tmp_path, config)
    kind, _, size = name.rpartition("/")[2].partition("_")
    if not (name.startswith("later") and size == "15m"):  # another 15m than the paper's
        preset = PRESETS[size]
        mixer, ffn = preset.options["gated_delta_net"], preset.options["swiglu"]
        sizes = (preset.num_layers, preset.d_model, mixer.num_heads, mixer.d_head, ffn.d_ffn)
        keys = ("num_hidden_layers", "hidden_size", "num_heads", "head_dim", "intermediate_size")
        assert sizes == tuple(config[key] for key in keys), kind


def mixed(x, tensors, prefix, config):
    """A Gated DeltaNet mixer, token by token, from the authors' tensors."""
    heads = config["num_heads"]
    take = lambda name: tensors[f"{prefix}.{name}"]  # noqa: E731
    by_head = lambda y: y.unflatten(-1, (heads, -1))  # noqa: E731
    parts = {}
    for name in "qkv":
        projected = F.pad((x @ take(f"{name}_proj.weight").T).transpose(1, 2), (3, 0))
        filtered = F.conv1d(projected, take(f"{name}_conv1d.weight"), groups=projected.shape[1])
        parts[name] = by_head(F.silu(filtered).transpose(1, 2))
    for name in "qk":
        squares = parts[name].square().sum(-1, keepdim=True)
        parts[name] = parts[name] / torch.sqrt(squares + 1e-6)
    query = parts["q"] / parts["q"].shape[-1] ** 0.5
    write = torch.sigmoid(x @ take("b_proj.weight").T) * (1 + config.get("allow_neg_eigval", 0))
    step = F.softplus(x @ take("a_proj.weight").T + take("dt_bias"))
    keep = torch.exp(-take("A_log").exp() * step)
    memory = x.new_zeros(*x.shape[:1], heads, query.shape[-1], parts["v"].shape[-1])
    read = []
    for at in range(x.shape[1]):
        memory = memory * keep[:, at, :, None, None]
        key, value = parts["k"][:, at], parts["v"][:, at]
        wrong = value - torch.einsum("bhkv,bhk->bhv", memory, key)
        memory = memory + torch.einsum("bhk,bhv->bhkv", key, write[:, at, :, None] * wrong)
        read.append(torch.einsum("bhkv,bhk->bhv", memory, query[:, at]))
    output = normed(torch.stack(read, dim=1), take("o_norm.weight"))
    gated = output * F.silu(by_head(x @ take("g_proj.weight").T))
    return gated.flatten(-2) @ take("o_proj.weight").T


def normed(x, weight):
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def composed(config, tensors, tokens):
    """The authors' four architectures, written out; the residual is added after each pass."""
    mixer_name, ffn_norm, ffn_name = names_of(config)
    passes, kind = config.get("loop_count", 1), config["model_type"]
    table = tensors.get("model.residual_weight")

    def after_pass(number, before, after):
        return after if table is None else after + table[number] * before

    def mixer(h, layer):
        prefix = f"model.layers.{layer}"
        x = normed(h, tensors[f"{prefix}.attn_norm.weight"])
        return h + mixed(x, tensors, f"{prefix}.{mixer_name}", config)

    def ffn(h, layer):
        prefix = f"model.layers.{layer}"
        x = normed(h, tensors[f"{prefix}.{ffn_norm}.weight"])
        gate, up, down = (
            tensors[f"{prefix}.{ffn_name}.{name}_proj.weight"] for name in ("gate", "up", "down")
        )
        return h + (F.silu(x @ gate.T) * (x @ up.T)) @ down.T

    h = tensors["model.embeddings.weight"][tokens]
    layers = range(config["num_hidden_layers"])
    if kind == "fullloop":
        for number in range(passes):
            before = h
            for layer in layers:
                h = ffn(mixer(h, layer), layer)
            h = after_pass(number, before, h)
    else:
        for layer in layers:
            for number in range(passes if kind == "mixerloop" else 1):
                looped = mixer(h, layer)
                h = after_pass(number, h, looped) if kind == "mixerloop" else looped
            for number in range(passes if kind == "ffnloop" else 1):
                looped = ffn(h, layer)
                h = after_pass(number, h, looped) if kind == "ffnloop" else looped
    return normed(h, tensors["model.norm.weight"]) @ tensors["model.embeddings.weight"].T


@pytest.mark.parametrize("name", SHRUNK)
def test_logits_are_those_of_the_architecture_written_out(name, tmp_path):
    config = SHRUNK[name]
    tensors = fresh_tensors(config, std=0.2)
    model, _ = read_exported(write(tmp_path / "released", config, tensors))
    tokens = torch.randint(50, (2, 21), generator=torch.Generator().manual_seed(1))
    wide = {name: tensor.double() for name, tensor in tensors.items()}
    with torch.no_grad():
        got = model.double()(tokens)
    expected = composed(config, wide, tokens)
    assert expected.std() > 0.5  # every part of the model shows
    torch.testing.assert_close(got, expected, rtol=0, atol=FLOAT64_AGREES)
