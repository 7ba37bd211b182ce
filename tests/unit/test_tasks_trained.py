"""Every registered task is measured by the same commands."""

import json

import pytest

from command_line import mixerloop
from mixerloop.config import run_config
from mixerloop.data.task_folder import prepare_task
from mixerloop.data.tasks.registry import TASKS
from mixerloop.evaluation.task_accuracy import evaluate_task
from mixerloop.evaluation.task_result import TaskResult
from mixerloop.evaluation.units import RatioUnits
from mixerloop.interop.loading import open_subject
from mixerloop.results import decode, encode
from mixerloop.studies.reading import read_run
from mixerloop.training.sessions import train
from small_model import SMALL, TRAIN, model_file

SEQUENCES = 20


@pytest.mark.parametrize("name", TASKS)
def test_accuracy_is_measured_in_every_group_and_for_longer_sequences(name, tmp_path):
    task = prepare_task(tmp_path / "data", TASKS[name].settings_type()).task
    model = SMALL | {"num_layers": 1, "vocab_size": task.vocab_size}
    steps = TRAIN | {"steps": 1, "evaluate_windows": 2, "tensorboard": False}
    train(
        run_config({"model": model, "data": {"path": str(tmp_path / "data")}, "train": steps}),
        tmp_path / "run",
    )
    result = evaluate_task(open_subject(tmp_path / "run"), sequences=SEQUENCES)
    assert (result.task, result.group_name) == (task.name, task.group_name)
    for groups, split in (
        (result.accuracy_by_group, task),
        (result.longer_accuracy_by_group, task.longer()),
    ):
        assert [part.group for part in groups] == list(split.groups if split else ())
        questions = SEQUENCES * len(split.answer_positions()) if split else 0
        assert sum(part.questions for part in groups) == questions
        for part in groups:
            assert 0 <= part.accuracy.lower <= part.accuracy.value <= part.accuracy.upper <= 1
            assert 0 <= part.guess <= 1
    units = read_run(tmp_path / "run").units["task"]
    assert isinstance(units, RatioUnits)
    assert units.denominators.tolist() == [len(task.answer_positions())] * SEQUENCES
    figures = encode(result)
    assert encode(decode(TaskResult, figures)) == figures
    old = {key: value for key, value in figures.items() if key != "longer_accuracy_by_group"}
    assert decode(TaskResult, old).longer_accuracy_by_group == ()


def test_a_second_table_is_printed_for_longer_sequences(tmp_path):
    (tmp_path / "small.toml").write_text(model_file(num_layers=1, vocab_size=37))
    mixerloop("init", tmp_path / "small.toml", "--out", tmp_path / "run")
    for name, tables in (("hops", 1), ("edits", 2)):
        data = tmp_path / name
        mixerloop("data", "prepare", name, "--out", data)
        evaluate = ("evaluate", "task", tmp_path / "run", "--sequences", SEQUENCES)
        said = mixerloop(*evaluate, "--data", data).stdout
        assert said.count("95 % interval") == tables
        assert ("edits, about twice as long or deep as in training:" in said) is (tables == 2)
        figures = json.loads(mixerloop(*evaluate, "--data", data, "--json").stdout)
        assert figures["task"] == name
