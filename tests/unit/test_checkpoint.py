import dataclasses
import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from mixerloop import runs
from mixerloop.config import RunConfig
from mixerloop.files import seal_folder
from mixerloop.model.checkpoint import WEIGHTS, load_model, save_model
from mixerloop.model.initialization import fresh_model
from mixerloop.schedule import LOOPS


@pytest.fixture
def saved(tiny, tmp_path):
    return save(tiny, tmp_path / "step-0")


def save(config, folder):
    folder.mkdir()
    save_model(folder, fresh_model(config, seed=0), RunConfig(model=config))
    seal_folder(folder)
    return folder


def rewrite(folder, change):
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
    seal_folder(folder)


@pytest.mark.parametrize("name", LOOPS)
def test_a_model_comes_back_bit_for_bit_with_its_schedule(tiny, tmp_path, name):
    config = tiny.changed(schedule=name, pass_residual="block")
    model, loaded_config = load_model(save(config, tmp_path / "step-0"))
    original = fresh_model(config, seed=0)
    assert model.schedule == original.schedule
    assert loaded_config.model.occurrences() == config.occurrences()
    for (name, one), (other_name, other) in zip(
        model.named_parameters(), original.named_parameters(), strict=True
    ):
        assert name == other_name
        assert torch.equal(one, other), name


def test_only_what_can_be_loaded_again_is_saved(tiny, tmp_path):
    with pytest.raises(ValueError, match="not the one its config describes"):
        save_model(
            tmp_path,
            fresh_model(tiny, seed=0),
            RunConfig(model=dataclasses.replace(tiny, schedule="full_loop")),
        )
    with pytest.raises(ValueError, match=r"is torch\.float64; checkpoints hold float32"):
        save_model(tmp_path, fresh_model(tiny, seed=0).double(), RunConfig(model=tiny))
    assert list(tmp_path.iterdir()) == []


def test_a_config_of_another_size_is_refused_before_memory_is_asked_for(saved):
    config = saved / runs.CONFIG
    text = config.read_text()
    for size in (21, 16_000_000):
        config.write_text(text.replace("d_model = 20", f"d_model = {size}"))
        seal_folder(saved)
        with pytest.raises(ValueError, match=r"embedding\.weight has the shape \[50, 20\], not"):
            load_model(saved)
    config.write_text(text.replace("d_model = 20", f"d_model = {10**20}"))
    seal_folder(saved)
    with pytest.raises(ValueError, match="d_model must be from 1 to"):
        load_model(saved)


def test_every_tensor_that_does_not_fit_is_named(saved):
    def change(tensors):
        del tensors["final_norm.weight"]
        tensors["surprise"] = torch.zeros(3)
        tensors["layers.0.ffn.down_proj.weight"] = torch.zeros(2, 2)
        tensors["layers.1.mixer.A_log"] = tensors["layers.1.mixer.A_log"].bfloat16()

    rewrite(saved, change)
    with pytest.raises(ValueError, match=WEIGHTS) as caught:
        load_model(saved)
    for part in (
        "missing final_norm.weight",
        "unexpected surprise",
        "layers.0.ffn.down_proj.weight has the shape [2, 2], not [20, 28]",
        "layers.1.mixer.A_log is BF16, not F32",
    ):
        assert part in str(caught.value)


def test_a_truncated_checkpoint_is_named_and_refused(saved):
    weights = saved / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"{WEIGHTS}: damaged, .* bytes instead of"):
        load_model(saved)
    seal_folder(saved)  # truncated before it was sealed: the format itself must notice
    with pytest.raises(ValueError, match=f"{WEIGHTS}: not a readable safetensors file"):
        load_model(saved)


def test_one_flipped_bit_is_named_and_refused(saved):
    weights = saved / WEIGHTS
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ValueError, match=f"{WEIGHTS}: damaged, its sha256"):
        load_model(saved)


def test_an_edited_config_is_named_and_refused(saved):
    config = saved / runs.CONFIG
    config.write_text(config.read_text().replace("3x(A4 F)", "3x(A3 F)"))
    with pytest.raises(ValueError, match=r"config\.toml: damaged, its sha256"):
        load_model(saved)


def test_a_pickle_in_the_place_of_weights_is_refused_and_never_run(saved, tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    (saved / WEIGHTS).write_bytes(pickle.dumps(Trap()))
    seal_folder(saved)
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        load_model(saved)
    assert not (tmp_path / "sprung").exists()


def test_a_file_the_seal_does_not_know_is_refused(saved):
    contents = json.loads((saved / runs.CONTENTS).read_text())
    del contents["files"][WEIGHTS], contents["sha256"]
    (saved / runs.CONTENTS).write_text(json.dumps(contents))
    with pytest.raises(ValueError, match=f"{WEIGHTS}: not in the checkpoint's list of files"):
        load_model(saved)
