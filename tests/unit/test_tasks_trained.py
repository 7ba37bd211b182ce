"""Every registered task is prepared, trained on and measured by the same commands."""

import json

import pytest

from command_line import mixerloop
from mixerloop.data.prepared import open_prepared
from mixerloop.data.task_folder import prepare_task
from mixerloop.data.tasks.registry import TASKS
from mixerloop.evaluation.measured_run import read_measured_run
from mixerloop.evaluation.task_result import TaskResult
from mixerloop.evaluation.units import RatioUnits
from mixerloop.results import decode, encode
from small_model import model_file, training_file

SEQUENCES = 60


@pytest.fixture(scope="module", params=tuple(TASKS))
def measured(request, tmp_path_factory):
    """A task, a run that was trained on it for two steps, and the JSON of its accuracy."""
    folder = tmp_path_factory.mktemp(request.param)
    mixerloop("data", "prepare", request.param, "--out", folder / "data")
    task = open_prepared(folder / "data").task
    assert task is not None
    config = training_file(
        str(folder / "data"), train={"steps": 2}, num_layers=1, vocab_size=task.vocab_size
    )
    (folder / "small.toml").write_text(config)
    mixerloop("train", folder / "small.toml", "--out", folder / "run")
    said = mixerloop("evaluate", "task", folder / "run", "--sequences", SEQUENCES, "--json").stdout
    return task, folder / "run", json.loads(said)


def test_accuracy_is_measured_in_every_group_and_for_longer_sequences(measured):
    task, _, figures = measured
    result = decode(TaskResult, figures)
    assert (result.task, result.group_name) == (task.name, task.group_name)
    longer = task.longer()
    for measured_groups, split in (
        (result.accuracy_by_group, task),
        (result.longer_accuracy_by_group, longer),
    ):
        assert [part.group for part in measured_groups] == list(split.groups if split else ())
        questions = SEQUENCES * len(split.answer_positions()) if split else 0
        assert sum(part.questions for part in measured_groups) == questions
        for part in measured_groups:
            assert 0 <= part.accuracy.lower <= part.accuracy.value <= part.accuracy.upper <= 1
            assert 0 <= part.guess <= 1


def test_the_units_of_a_comparison_are_held_out_sequences(measured):
    task, run, _ = measured
    units = read_measured_run(run).units["task"]
    assert isinstance(units, RatioUnits)
    assert units.denominators.tolist() == [len(task.answer_positions())] * SEQUENCES


def test_results_without_longer_sequences_are_still_read(measured):
    _, _, figures = measured
    old = {name: value for name, value in figures.items() if name != "longer_accuracy_by_group"}
    assert decode(TaskResult, old).longer_accuracy_by_group == ()
    assert encode(decode(TaskResult, figures)) == figures


def test_a_second_table_is_printed_for_longer_sequences(tmp_path):
    for name, tables in (("hops", 1), ("edits", 2)):
        folder = tmp_path / name
        prepare_task(folder / "data", TASKS[name].settings_type())
        (tmp_path / "small.toml").write_text(model_file(num_layers=1, vocab_size=37))
        mixerloop("init", tmp_path / "small.toml", "--out", folder / "run")
        evaluate = ("evaluate", "task", folder / "run", "--data", folder / "data")
        said = mixerloop(*evaluate, "--sequences", SEQUENCES).stdout
        assert said.count("95 % interval") == tables
        assert ("edits, about twice as long or deep as in training:" in said) is (tables == 2)
