"""A second synthetic task is one file and one registration; everything else works for it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from command_line import mixerloop
from mixerloop.config import run_config
from mixerloop.data.preparation import TaskPreparation, parse_preparation
from mixerloop.data.prepared import open_prepared
from mixerloop.data.shards import seal_manifest
from mixerloop.data.task_folder import prepare_task
from mixerloop.data.tasks.registry import TASKS, register
from mixerloop.data.windows import NOT_SCORED, Draw
from mixerloop.evaluation.held_out_nll import evaluate_nll
from mixerloop.evaluation.hops_accuracy import evaluate_hops
from mixerloop.evaluation.task_accuracy import evaluate_task
from mixerloop.interop.loading import open_subject
from mixerloop.runs import find_checkpoint
from mixerloop.studies.study import read_study
from mixerloop.training.sessions import resume, train
from mixerloop.transport.measurement import Looking, measure_transport
from small_model import SMALL, TRAIN
from toy_task import Copy, CopySettings


@pytest.fixture(scope="module", autouse=True)
def registered():
    register(Copy)
    yield
    del TASKS["copy"]


@pytest.fixture(scope="module")
def data(registered, tmp_path_factory):
    folder = tmp_path_factory.mktemp("copy") / "data"
    prepare_task(folder, CopySettings())
    return folder


@pytest.fixture(scope="module")
def run(data):
    """A run that was trained in one session."""
    folder = data.parent / "run"
    train(config_of(data), folder)
    return folder


def config_of(data):
    train = TRAIN | {"steps": 4, "evaluate_every": 2, "evaluate_windows": 4, "tensorboard": False}
    model = SMALL | {"schedule": "mixer_loop(2)"}
    return run_config({"model": model, "data": {"path": str(data)}, "train": train})


def test_a_folder_is_one_manifest_and_opens_as_prepared_data(data):
    manifest = json.loads((data / "manifest.json").read_text())
    assert manifest["format"] == "mixerloop-copy-1"
    assert manifest["settings"] == vars(CopySettings())
    prepared = open_prepared(data)
    assert (prepared.vocab_size, prepared.context) == (9, 17)
    inputs, labels = prepared.windows("train", None).read(np.arange(3))
    assert inputs.shape == labels.shape == (3, 17)
    assert ((labels != NOT_SCORED).sum(axis=1) == 5).all()
    drawn = prepared.draw(Draw(num=2, num_positions=3, seed=0), context=128)
    assert drawn.positions.tolist() == [12, 14, 16]
    assert prepared.samples(1, characters=9)["train"][0].count("[") == 5
    assert "settings of copy, sound" in prepared.verify()


def test_it_trains_and_resumes_exactly(data, run, tmp_path):
    train(config_of(data), tmp_path / "again", until=2)
    resume(tmp_path / "again")
    again = tmp_path / "again"
    assert (run / "metrics.jsonl").read_bytes() == (again / "metrics.jsonl").read_bytes()
    whole, resumed = (find_checkpoint(one) / "model.safetensors" for one in (run, again))
    assert whole.read_bytes() == resumed.read_bytes()


def test_it_is_measured_by_nll_and_by_accuracy_in_each_group(run):
    subject = open_subject(run)
    nll = evaluate_nll(subject)
    assert nll.context == 17
    result = evaluate_task(subject, sequences=100)
    assert result.task == "copy"
    assert [part.group for part in result.accuracy_by_group] == [1, 2, 3]
    assert sum(part.questions for part in result.accuracy_by_group) == 100 * 5
    near, *far = [part.guess for part in result.accuracy_by_group]
    assert near == 1.0
    assert max(far) < 0.4
    for part in result.accuracy_by_group:
        assert part.accuracy.lower <= part.accuracy.value <= part.accuracy.upper


def test_it_is_transported(run):
    result = measure_transport(open_subject(run), Looking(windows=4, positions=2))
    assert result.provenance


def test_the_verbs_prepare_and_show_it(tmp_path):
    """In a process, because the verbs list the tasks that are registered when they are imported."""
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from mixerloop.data.tasks.registry import register\n"
        "from toy_task import Copy\n"
        "register(Copy)\n"
        "from mixerloop.cli.main import main\n"
        "main()\n"
    )
    words = ("data", "prepare", "copy", "--out", "copy", "--num-symbols", "7")
    ended = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "copy: copies of 7 symbols" in ended.stdout
    shown = json.loads(mixerloop("data", "show", "copy", "--json", cwd=tmp_path).stdout)
    assert (shown["num_symbols"], len(shown["samples"]["held_out"])) == (7, 2)


def test_a_study_file_can_ask_for_it():
    assert parse_preparation(["copy", "--num-symbols", "7"]) == TaskPreparation(
        settings=CopySettings(num_symbols=7)
    )
    assert parse_preparation(["copy", "--length", "10"]).context == 19


def test_wrong_options_are_rejected_with_the_line_of_the_study(tmp_path):
    study = (
        'title = "Copy"\n[[parts]]\nname = "copy"\nconfig = "small.toml"\nprepare = {prepare}\n'
        'arms = ["no_loop"]\nseeds = [1]\nmeasure = {measure}\n'
    )
    for prepare, measure, named in (
        (["copy", "--num-simbols", "7"], ["nll"], "line 5: unknown option --num-simbols; did you"),
        (["copy", "--max-distance", "9"], ["nll"], "line 5: copy.max_distance must be from 1"),
    ):
        text = study.format(prepare=json.dumps(prepare), measure=json.dumps(measure))
        (tmp_path / "study.toml").write_text(text)
        with pytest.raises(ValueError, match=r"study\.toml, line") as caught:
            read_study(tmp_path / "study.toml")
        assert named in str(caught.value)


def test_a_task_is_not_another_task(data, run, hops_data):
    with pytest.raises(ValueError, match="not a folder of hops; give one with --data"):
        evaluate_hops(open_subject(run))
    with pytest.raises(ValueError, match="its sequences have 17 tokens, not 39"):
        open_prepared(data).windows("train", open_prepared(hops_data).context)
    with pytest.raises(ValueError, match="two tasks are called copy"):
        register(Copy)


def test_the_folder_of_an_unknown_task_is_named(tmp_path):
    (tmp_path / "manifest.json").write_text('{"format": "mixerloop-copi-1", "settings": {}}')
    seal_manifest(tmp_path)
    named = "no task has the format mixerloop-copi-1; did you mean mixerloop-copy-1?"
    with pytest.raises(ValueError, match=named):
        open_prepared(tmp_path)
