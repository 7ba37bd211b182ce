"""Runs that start from the weights of another run: what they take, record and reject."""

import shutil
from dataclasses import fields, replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from made_once import made_once
from mixerloop import runs
from mixerloop.config import run_config
from mixerloop.data.corpora import prepare_text
from mixerloop.interop.conversion import export_run
from mixerloop.interop.loading import open_subject
from mixerloop.interop.parents import open_parent
from mixerloop.model.checkpoint import load_model
from mixerloop.model.initialization import fresh_model, meta_model
from mixerloop.parent_record import read_parent
from mixerloop.training.display import show_training
from mixerloop.training.parent import fresh_names
from mixerloop.training.run_setup import begin, resumed_config
from mixerloop.training.sessions import train
from mixerloop.training.status import status
from mixerloop.transport.measurement import Looking, measure_transport
from mixerloop.transport.result import TransportFigures
from small_model import SMALL, small_config
from training_sessions import (
    assert_same_run,
    contents,
    go,
    records,
    twelve_steps,
    weights,
    with_train,
)

FEW = Looking(windows=2, positions=2, context=16)


@pytest.fixture(scope="module")
def config(hops_data):
    """A model whose weights are large enough that wrong weights show in every bit of the loss."""
    return twelve_steps(hops_data, small_config(**SMALL, schedule="no_loop"))


@pytest.fixture(scope="module")
def base(tmp_path_factory, config):
    """The parent of the other runs; read only."""
    config = with_train(config, peak_lr=5e-2)
    made = made_once(tmp_path_factory, "parent", lambda place: go(place / "run", config))
    return made / "run"


def retrofit(config, **model):
    return replace(config, model=config.model.changed(**{"schedule": "mixer_loop(2)", **model}))


def test_a_run_starts_from_its_parents_weights_under_its_own_schedule(tmp_path, config, base):
    parent = open_parent(base)
    begin(tmp_path / "run", retrofit(config), parent=parent)
    theirs, ours = weights(base, 12), weights(tmp_path / "run", 0)
    fresh = fresh_model(config.model, seed=1337, form="torch").state_dict()
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name
        assert not torch.equal(ours[name], fresh[name]), name
    model, _ = load_model(tmp_path / "run")
    assert model.config.schedule == "2x(A2 F)"
    assert runs.read_provenance(tmp_path / "run")["parent"] == {
        "folder": str(base),
        "sha256": open_subject(base, keep=False).fingerprint,
        "schedule": "2x(A F)",
        "step": 12,
        "run_id": runs.read_provenance(base)["id"],
        "fresh": [],
    }


def test_a_parent_at_step_0_of_the_same_seed_makes_the_plain_run(tmp_path, config, base):
    """The parent is on the disk and the plain run is drawn: every later bit is the same."""
    config = retrofit(config)
    begin(tmp_path / "base", config)
    go(tmp_path / "plain", config, until=2)
    go(tmp_path / "run", config, until=2, parent=open_parent(tmp_path / "base"))
    assert_same_run(contents(tmp_path / "plain", 2), contents(tmp_path / "run", 2))
    go(tmp_path / "another", config, until=1, parent=open_parent(base))
    first, other = (records(tmp_path / name / "metrics.jsonl")[0] for name in ("run", "another"))
    assert first["loss"] != other["loss"]


def test_resumed_without_its_parent_it_is_the_same_run_to_the_bit(tmp_path, config, base, capsys):
    """Tensors that the parent lacks are drawn and named, and some others are frozen."""
    config = retrofit(config, pass_residual="mixer")
    config = with_train(config, steps=3, freeze=("embedding.*", "layers.1.ffn*"))
    folder = shutil.copytree(base, tmp_path / "base")
    go(tmp_path / "whole", config, parent=open_parent(folder))
    train(config, tmp_path / "parts", parent=open_parent(folder), until=2, display=show_training)
    assert (
        f"parts: starts from the weights of {folder} at step 12, schedule 2x(A F); fresh: pass_r"
        in capsys.readouterr().err
    )
    shutil.rmtree(folder)
    assert go(tmp_path / "parts", config).finished
    assert_same_run(contents(tmp_path / "whole", 3), contents(tmp_path / "parts", 3))
    record = read_parent(runs.checkpoint_folder(tmp_path / "parts", 3))
    assert record is not None
    assert record.fresh == ("pass_residual.weight",)
    assert runs.read_provenance(tmp_path / "parts")["parent"]["fresh"] == ["pass_residual.weight"]
    before, after = weights(tmp_path / "parts", 0), weights(tmp_path / "parts", 3)
    fresh = fresh_model(config.model, seed=1337, form="torch").state_dict()
    assert torch.equal(before["pass_residual.weight"], fresh["pass_residual.weight"])
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {name for name in before if name.startswith(("embedding.", "layers.1.ffn"))}


def test_a_checkpoint_and_an_exported_folder_can_be_parents(tmp_path, config, base):
    export_run(base, tmp_path / "exported")
    folders = {"newest": base, "older": base / "checkpoints/step-8", "hf": tmp_path / "exported"}
    parents = {name: open_parent(folder) for name, folder in folders.items()}
    for name, parent in parents.items():
        begin(tmp_path / name, retrofit(config), parent=parent)
    assert {name: parent.step for name, parent in parents.items()} == {
        **{"newest": 12, "older": 8, "hf": None}
    }
    assert [name for name, parent in parents.items() if parent.run_id is None] == ["hf"]
    older, newest = weights(base, 8), weights(base, 12)
    for name, theirs in (("newest", newest), ("older", older), ("hf", newest)):
        ours = weights(tmp_path / name, 0)
        assert all(torch.equal(ours[key], tensor) for key, tensor in theirs.items()), name
    assert not torch.equal(older["embedding.weight"], newest["embedding.weight"])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"vocab_size": 60}, "embedding.weight has the shape [12, 16] in the parent and [60, 16]"),
        ({"num_layers": 1}, "layers.1.mixer_norm.weight has the shape [16] in the parent, and the"),
        ({"num_layers": 3}, "the parent has 2 layers and the model 3"),
        ({"mixer": "attention", "num_heads": 2, "d_head": 8}, "layers.0.mixer."),
    ],
)
def test_a_parent_that_does_not_fit_is_rejected_by_name(tmp_path, config, base, model, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        begin(tmp_path / "run", retrofit(config, **model), parent=open_parent(base))
    assert f"{base}: does not fit the model: {message}" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_another_kind_is_rejected_even_if_every_tensor_fits(tmp_path, config, monkeypatch):
    """Tensors may have the same names and shapes in kinds that compute different things."""
    mixers = config.model.changed(mixer="retention", num_heads=2, d_head=8)
    monkeypatch.setattr("mixerloop.training.parent._shapes", lambda _: {})
    begin(tmp_path / "base", replace(config, model=mixers))
    with pytest.raises(
        ValueError, match="layer 0 has retention and swiglu in the parent and gated"
    ):
        fresh_names(meta_model(config.model), open_parent(tmp_path / "base"))


def test_a_parent_that_changed_after_it_was_opened_is_rejected(tmp_path, config, base):
    folder = shutil.copytree(base, tmp_path / "base")
    parent = open_parent(folder)
    path = runs.checkpoint_folder(folder, 12) / "model.safetensors"
    tensors = load_file(path)
    tensors["final_norm.weight"] += 1
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        begin(tmp_path / "run", retrofit(config), parent=parent)
    assert not (tmp_path / "run").exists()


def test_the_data_must_be_of_the_parents_tokenizer(tmp_path, text_run, text_data):
    parent = open_parent(text_run)
    files = [tmp_path / f"{name}.txt" for name in ("train", "held-out")]
    for file in files:
        file.write_text(f"{file.name} {'zebras in boxes. ' * 40}")
    prepare_text(files[:1], tmp_path / "zebras", held_out=files[1:], vocab_size=300)
    model = small_config(**SMALL | {"vocab_size": 300}, schedule="mixer_loop(2)")
    for name, data in (("same", text_data), ("other", tmp_path / "zebras")):
        config = twelve_steps(data, model, context=16)
        if name == "same":
            begin(tmp_path / name, config, parent=parent)
            continue
        with pytest.raises(ValueError, match=r"zebras: is of the tokenizer .*, and .*run is of"):
            begin(tmp_path / name, config, parent=parent)
        assert not (tmp_path / name).exists()


def test_the_model_is_the_parents_with_what_the_config_changes(config):
    base = config.model.changed(schedule="no_loop", pass_residual="block", norm_eps=1e-3)
    sections = {"data": {"path": "data"}, "train": {"steps": 1}}
    assert run_config(sections, base=base).model == base
    options = {"model": {"schedule": "mixer_loop"}}
    assert run_config(sections, options, base=base).model == base.changed(schedule="mixer_loop")
    changed = run_config({"model": {"d_ffn": 32}, **sections}, options, base=base).model
    assert changed == base.changed(schedule="mixer_loop", d_ffn=32)
    sized = run_config({"model": {"preset": "nano", "num_layers": 3}, **sections}, base=base).model
    assert (sized.d_model, sized.num_layers, sized.schedule) == (128, 3, "no_loop")
    assert sized.options["pass_residual"].unit == "block"


def test_a_config_without_a_model_resumes_a_run_with_a_parent(tmp_path, config, base):
    begin(tmp_path / "run", retrofit(config), parent=open_parent(base))
    text = (tmp_path / "run/config.toml").read_text()
    (tmp_path / "short.toml").write_text(text[text.index("[data]") :])
    resumed = resumed_config(tmp_path / "run", config_file=tmp_path / "short.toml", overrides={})
    assert resumed.model.schedule == "2x(A2 F)"


def test_the_control_of_transport_is_the_parent_under_the_new_schedule(tmp_path, config, base):
    kept = with_train(retrofit(config), steps=3, checkpoint_every=1, keep_last=1)
    go(tmp_path / "run", kept, parent=open_parent(base))
    assert sorted(runs.checkpoints(tmp_path / "run")) == [0, 3]
    assert status(tmp_path / "run").parent == str(base)
    measured = measure_transport(open_subject(tmp_path / "run", keep=False), FEW, control=True)
    theirs = measure_transport(open_subject(base, schedule="mixer_loop(2)", keep=False), FEW)
    assert measured.control is not None
    for figure in fields(TransportFigures):
        assert getattr(measured.control, figure.name) == getattr(theirs, figure.name), figure.name

    shutil.rmtree(runs.checkpoint_folder(tmp_path / "run", 0))
    with pytest.raises(ValueError, match="began with the weights of a parent, and the checkpoint"):
        measure_transport(open_subject(tmp_path / "run", keep=False), FEW, control=True)
