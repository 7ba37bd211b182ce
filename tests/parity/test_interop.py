"""Models as others keep them: the same numbers there and back, and nothing taken on trust."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from mixerloop.config import ModelConfig
from mixerloop.interop.folders import export, is_exported, read_exported
from mixerloop.interop.layout import from_released, to_released
from mixerloop.interop.loading import load_any
from mixerloop.interop.released_config import model_config, released_config
from mixerloop.model.initialization import fresh_model
from mixerloop.schedule import LOOPS

UNITS = {"mixer_loop(3)": "mixer", "ffn_loop(2)": "ffn", "full_loop(2)": "stack"}


def model_of(tiny, schedule="mixer_loop(3)", *, pass_residual="none"):
    config = tiny.changed(schedule=schedule, pass_residual=pass_residual)
    model = fresh_model(config, seed=3)
    for rule in model.pass_rules:
        torch.nn.init.normal_(rule.get_parameter("weight"), std=0.3)
    return model.eval()


@pytest.fixture
def released(tiny, tmp_path):
    """A folder as others release it, without our seal."""
    export(model_of(tiny), tmp_path / "hf")
    (tmp_path / "hf" / "contents.json").unlink()
    return tmp_path / "hf"


@pytest.mark.parametrize(
    ("schedule", "unit"),
    [
        *((schedule, "none") for schedule in (*LOOPS, "A4 F A F A2 F")),
        *(("mixer_loop(3)", "mixer"), ("ffn_loop(2)", "ffn"), ("full_loop(2)", "stack")),
    ],
)
def test_there_and_back_is_the_same_bits(tiny, tmp_path, schedule, unit):
    model = model_of(tiny, schedule, pass_residual=unit)
    export(model, tmp_path / "hf")
    assert is_exported(tmp_path / "hf")
    back, config = read_exported(tmp_path / "hf")
    assert config.model.occurrences() == model.schedule
    assert [rule.unit for rule in config.model.pass_rules().values()] == [unit] * (unit != "none")
    ours, theirs = dict(model.named_parameters()), dict(back.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def test_half_precision_checkpoints_are_widened(tiny):
    model = model_of(tiny)
    tensors = to_released(dict(model.named_parameters()), num_layers=tiny.num_layers)
    narrow = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    back = from_released(narrow, num_layers=tiny.num_layers)
    assert {tensor.dtype for tensor in back.values()} == {torch.float32}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hiden_size": 3}, "unknown key hiden_size; did you mean hidden_size?"),
        ({"model_type": "mamba"}, "model_type 'mamba' is not known here"),
        ({"expand_v": 2}, "its weights do not fit its config"),
        ({"expand_v": 1.3}, "expand_v = 1.3: gives heads of 8 values no whole width"),
        ({"expand_v": "1"}, "expand_v = '1': not a number it can be"),
        ({"use_gate": False}, "use_gate = False: our models have True"),
        ({"allow_neg_eigval": 1}, "allow_neg_eigval = 1: neither true nor false"),
        ({"num_v_heads": 7}, "num_v_heads"),
        ({"hidden_size": "20"}, "hidden_size = '20': not a number"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_heads": 0}, "num_heads must be from 1"),
        ({"norm_eps": None}, "norm_eps is missing"),
        ({"schedule": "mixer_loop(3)"}, "loop_count: the schedule says how often"),
        ({"expand_v": float("inf")}, "expand_v = inf: gives heads of 8 values no whole width"),
        (
            {"intermediate_size": None, "hidden_ratio": float("inf")},
            "hidden_ratio = inf: not a number it can be",
        ),
        ({"mixer_norm_eps": 1e-6}, "unknown key mixer_norm_eps"),
        ({"loop_count": None}, "loop_count is missing, so the number of passes is not known"),
        ({"loop_count": 0}, "loop_count = 0: not a number it can be"),
        ({"loop_count": True}, "loop_count = True: not a number it can be"),
        ({"model_type": "gated_deltanet"}, "loop_count: a gated_deltanet has none"),
        ({"use_residual": True}, "use_residual = true, but the weights do not have one"),
        ({"use_residual": 1}, "use_residual = 1: neither true nor false"),
        ({"pass_residual": "mixer"}, "use_residual: pass_residual says this"),
        ({"loop_count": None, "schedule": "5x(A F)"}, "has 5 layers; the model has 3"),
        ({"use_residual": None, "pass_residual": "foo"}, "unknown pass_residual 'foo'"),
        ({"pass_residual": ["mixer"]}, "pass_residual = ['mixer']: not a text"),
        ({"loop_count": None, "schedule": 5}, "schedule = 5: not a text"),
        ({"model_type": "mixerloop_schedule", "loop_count": None}, "schedule is missing"),
        ({"intermediate_size": None, "hidden_ratio": "4"}, "hidden_ratio = '4': not a number"),
        ({"head_dim": 4}, "its weights do not fit its config"),
        ({"num_hidden_layers": 4}, "missing model.layers.3"),
        ({"num_hidden_layers": 2}, "unexpected model.layers.2"),
    ],
)
def test_a_foreign_config_is_refused_by_key(released, change, named):
    path = released / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"hf(/config\.json)?: ") as caught:
        read_exported(released)
    assert named in str(caught.value)


def test_damage_is_named(released):
    weights = released / "model.safetensors"
    tensors = load_file(weights)
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        read_exported(released)
    save_file(tensors | {"model.norm.bias": torch.zeros(3)}, weights)
    with pytest.raises(ValueError, match=r"unexpected model\.norm\.bias"):
        read_exported(released)
    weights.unlink()
    (released / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match="a pickle, which can run code"):
        read_exported(released)
    (released / "pytorch_model.bin").unlink()
    (released / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match="hf: damaged, or of another model"):
        read_exported(released)
    (released / "model.safetensors.index.json").unlink()
    save_file(tensors, weights)
    (released / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"hf/config\.json: cannot read this file"):
        read_exported(released)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("residual_weight", (), ""),
        ("layers.0.mixer.q_conv1d.weight", (16,), ""),
        ("layers.0.mixer.q_conv1d.weight", (16, 3, 4), ""),
        ("layers.0.mixer.k_proj.weight", (7, 9), ""),
        ("layers.1.mixer.k_proj.weight", (12, 20), r".* the shape \[12, 20\], not \[16, 20\]"),
    ],
)
def test_a_tensor_of_another_shape_is_refused_in_a_line(released, name, shape, message):
    """Also where another matrix has the rows that this one lacks."""
    weights = released / "model.safetensors"
    tensors = load_file(weights) | {f"model.{name}": torch.zeros(shape)}
    if message:
        tensors["model.layers.1.mixer.q_proj.weight"] = torch.zeros(20, 20)
    save_file(tensors, weights)
    with pytest.raises(ValueError, match=rf"hf(/config\.json)?: {message}"):
        read_exported(released)


def test_shards_are_read_and_known_by_all_of_their_bytes(released):
    weights, index = released / "model.safetensors", released / "model.safetensors.index.json"
    tensors = load_file(weights)
    names = sorted(tensors)
    parts = {f"part-{number}.safetensors": names[number::2] for number in range(2)}

    def fingerprint(changed=None):
        for part, mine in parts.items():
            scale = 2.0 if part == changed else 1.0
            save_file({name: scale * tensors[name] for name in mine}, released / part)
        return load_any(released).fingerprint

    weights.unlink()
    places = {name: part for part, mine in parts.items() for name in mine}
    index.write_text(json.dumps({"weight_map": places}))
    first = fingerprint()
    model, _ = read_exported(released)
    assert torch.equal(model.embedding.weight, tensors["model.embeddings.weight"])
    assert len({first, *map(fingerprint, parts)}) == 3
    index.write_text(json.dumps({"weight_map": {"x": "../whole.safetensors"}}))
    with pytest.raises(ValueError, match="is not in this folder"):
        read_exported(released)


def test_a_key_that_is_known_to_mean_nothing_can_be_ignored(tiny):
    given = released_config(dataclasses.replace(tiny, schedule="no_loop")) | {"their_key": 1}
    with pytest.raises(ValueError, match="unknown key their_key"):
        model_config(given)
    found = model_config(given, ignore=["their_key"])
    assert isinstance(found, ModelConfig)


@pytest.mark.parametrize(("d_head", "d_value"), [(7, 29), (56, 58), (112, 29), (8, 12)])
def test_every_width_of_values_reads_back(tiny, d_head, d_value):
    config = tiny.changed(d_head=d_head, d_value=d_value)
    read = model_config(released_config(config))
    assert read.options["gated_delta_net"].d_value == d_value


def exported_like(config, like):
    """What an export of a model writes that came from a folder with this config."""
    return released_config(model_config(like | config), like=like | config)


def test_an_export_is_like_the_folder_the_model_came_from(tiny):
    published = released_config(dataclasses.replace(tiny, schedule="mixer_loop(4)"))
    assert released_config(model_config(published), like=published) == published
    for change in (
        {"hidden_ratio": 3},
        {"hidden_act": "silu"},
        {
            "conv_bias": False,
            "num_v_heads": tiny.options["gated_delta_net"].num_heads,
            "allow_neg_eigval": False,
        },
        {"loop_count": 1},
        {"max_position_embeddings": 17},
    ):
        assert exported_like(change, published) == published | change
    assert exported_like({"use_cache": True}, published)["use_cache"] is False
    assert exported_like({"dtype": "bfloat16"}, published)["dtype"] == "float32"
    changed = model_config(published, schedule="full_loop(2)")
    other = released_config(changed, like=published)
    assert (other["model_type"], other["loop_count"]) == ("fullloop", 2)


def test_our_first_exports_are_read_and_come_out_as_what_they_are(tiny):
    now = released_config(dataclasses.replace(tiny, schedule="mixer_loop(2)"))
    sizes = {key: now[key] for key in ("num_hidden_layers", "hidden_size", "num_heads", "head_dim")}
    sizes |= {key: now[key] for key in ("intermediate_size", "vocab_size", "conv_size", "norm_eps")}
    loop = {"schedule": "3x(A2 F)", "pass_residual": "none", "num_passes": None}
    first = {"model_type": "mixerloop", "tie_word_embeddings": True, **loop, **sizes}
    again = released_config(model_config(first), like=first)
    assert (again["model_type"], again["loop_count"]) == ("mixerloop", 2)
    assert again["use_residual"] is False
    assert again["use_cache"] is False
    assert "schedule" not in again
