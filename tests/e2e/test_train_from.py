"""`mixerloop train --from` and studies with a parent, as a user runs them."""

import json
import shutil

import pytest
import tomli_w
import torch
from safetensors.torch import load_file

from command_line import mixerloop, refused
from small_model import TRAIN, training_file
from torchrun import torchrun

FURTHER = {"data": {"path": "data"}, "train": TRAIN | {"steps": 6, "freeze": ["embedding.*"]}}
STUDY = """
title = "Which loop to add to a trained model?"

[[parts]]
name = "hops"
config = "further.toml"
prepare = ["hops"]
from = "{parent}"
arms = ["no_loop", { schedule = "mixer_loop(2)", model = { pass_residual = "mixer" } }]
seeds = [1]
measure = ["nll", "transport"]
transport = { windows = 2, positions = 2 }
"""


@pytest.fixture(scope="module")
def place(hops_data, tmp_path_factory):
    """A trained run, and a config without a model."""
    place = tmp_path_factory.mktemp("from")
    shutil.copytree(hops_data, place / "data")
    (place / "base.toml").write_text(training_file("data", schedule="no_loop"))
    (place / "further.toml").write_text(tomli_w.dumps(FURTHER))
    (place / "study.toml").write_text(STUDY)
    mixerloop("train", "base.toml", "--out", "base", cwd=place)
    return place


def weights(run, step):
    return load_file(run / f"checkpoints/step-{step}/model.safetensors")


def test_a_loop_is_added_to_a_trained_model(place):
    retrofit = ("--schedule", "mixer_loop(2)", "--model.pass-residual", "mixer")
    done = mixerloop("train", "further.toml", "--from", "base", *retrofit, cwd=place)
    run = place / "runs/further-mixer_loop_2"
    start = "runs/further-mixer_loop_2: starts from the weights of base at step 4, schedule 2x(A F)"
    assert f"{start}; fresh: pass_residual.weight\n" in done.stderr
    assert "trained, 192 frozen)" in done.stderr
    before, after = weights(place / "base", 4), weights(run, 6)
    assert after.keys() - before.keys() == {"pass_residual.weight"}
    assert [name for name in before if torch.equal(before[name], after[name])] == [
        "embedding.weight"
    ]
    (listed,) = json.loads(mixerloop("runs", "--json", cwd=place).stdout)
    assert (listed["parent"], listed["schedule"]) == ("base", "2x(A2 F)")


def test_stopped_it_resumes_to_the_same_bits_without_its_parent(place, tmp_path):
    shutil.copytree(place, tmp_path / "place")
    place = tmp_path / "place"
    options = ("--from", "base", "--schedule", "mixer_loop(2)", "--model.pass_residual", "mixer")
    mixerloop("train", "further.toml", *options, "--out", "whole", cwd=place)
    mixerloop("train", "further.toml", *options, "--out", "stopped", "--until", 3, cwd=place)
    shutil.rmtree(place / "base")
    mixerloop("train", "--resume", "stopped", cwd=place)
    for name in (
        "metrics.jsonl",
        "checkpoints/step-0/model.safetensors",
        "checkpoints/step-6/model.safetensors",
        "checkpoints/step-6/optimizer/optimizer.safetensors",
        "checkpoints/step-6/parent.json",
    ):
        assert (place / "stopped" / name).read_bytes() == (place / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--from", "nix"], ["nix: there is no such run"]),
        (["--from", "data"], ["data: prepared data, and not a run"]),
        (
            ["--from", "base", "--model.vocab-size", 20],
            ["base: does not fit", "embedding.weight has the shape [12, 16]", "and [20, 16]"],
        ),
        (["--from", "base", "--model.preset", "nano"], ["has 2 layers; the model has 4"]),
        (
            ["--from", "base", "--model.preset", "nano", "--schedule", "no_loop"],
            ["base: does not fit", "embedding.weight has the shape [12, 16]", "and [4096, 128]"],
        ),
        (["--from", "base", "--train.freeze", "embeding.*"], ["did you mean embedding.*?"]),
        (["--from", "base", "--train.freeze", "*"], ["no parameter is left to train"]),
        ([], ["model is missing"]),
    ],
)
def test_what_cannot_be_trained_is_one_line_and_leaves_nothing(place, arguments, parts):
    before = sorted(path.name for path in place.iterdir())
    line = refused("train", "further.toml", "--out", "x", *arguments, cwd=place)
    assert all(part in line for part in parts), line
    assert sorted(path.name for path in place.iterdir()) == before


def test_a_resumed_run_has_no_other_weights_than_its_own(place):
    line = refused("train", "--resume", "base", "--from", "base", cwd=place)
    assert line == "mixerloop: --resume goes on from the run's own weights; leave --from out"


@pytest.mark.usefixtures("quick")
def test_a_study_starts_its_models_from_a_parent(place):
    line = refused("study", "study.toml", "--out", "study", cwd=place)
    assert "study.toml, line 8: these models start from a run of yours: --parent RUN" in line
    line = refused("study", "study.toml", "--parent", "data", "--out", "study", cwd=place)
    assert "study.toml, line 8: " in line
    study = ("study", "study.toml", "--out", "study", "--parent", "base")
    mixerloop(*study, "--jobs", "1", cwd=place)
    sha256 = set()
    for arm, fresh in (("no_loop", []), ("mixer_loop(2)", ["pass_residual.weight"])):
        run = place / f"study/hops/{arm}-seed1"
        before, after = weights(place / "base", 4), weights(run, 0)
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
        parent = json.loads((run / "provenance.json").read_text())["parent"]
        assert parent["fresh"] == fresh
        sha256.add(parent["sha256"])
    assert len(sha256) == 1
    page = (place / "study/report.md").read_text()
    assert f"at step 4 ({sha256.pop()[:10]}), which were trained under 2x(A F)." in page
    assert "In mixer_loop(2) pass_residual.weight is new." in page

    mixerloop("train", "base.toml", "--out", "other", "--train.seed", 5, cwd=place)
    line = refused("study", "study.toml", "--out", "study", "--parent", "other", cwd=place)
    assert "hops was made with from the weights" in line


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["fsdp", pytest.param("ddp", marks=pytest.mark.nightly)])
def test_two_ranks_train_further_and_freeze_as_one_does(place, parallel):
    """Layers that are frozen whole, in part and not at all, before and after trained layers."""
    freeze = ("--train.freeze", "embedding.*", "layers.0.*", "layers.1.ffn.down_proj.*")
    options = ("further.toml", "--from", "base", "--schedule", "full_loop(2)", *freeze)
    mixerloop("train", *options, "--out", f"one-{parallel}", cwd=place)
    ranks = ("--train.parallel", parallel, "--train.micro_batch", 1, "--train.recompute", "true")
    torchrun("train", *options, *ranks, "--out", f"two-{parallel}", "--until", 3, cwd=place)
    torchrun("train", "--resume", f"two-{parallel}", cwd=place)
    before = weights(place / "base", 4)
    one, two = (weights(place / f"{number}-{parallel}", 6) for number in ("one", "two"))
    for name, tensor in before.items():
        is_frozen = name.startswith(("embedding.", "layers.0.", "layers.1.ffn.down_proj."))
        assert torch.equal(two[name], tensor) == is_frozen, name
        assert torch.allclose(one[name], two[name], rtol=1e-4, atol=1e-5), name
