"""The history of a run has no holes: it is checked by readers and restored by a resumed run."""

import json
import shutil
from pathlib import Path

import pytest

from made_once import made_once
from mixerloop import config as configs
from mixerloop import runs
from mixerloop.history import FILES, read_history, restore_history
from mixerloop.training.sessions import resume, train
from mixerloop.training.status import status
from small_model import training_file
from training_sessions import Watching


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory, hops_data) -> Path:
    """A run that was stopped at step 4, and whose newest checkpoint is of that step."""
    made = made_once(tmp_path_factory, "stopped", lambda place: stopped(hops_data, place))
    return made / "run"


def stopped(data: Path, place: Path) -> None:
    (place / "small.toml").write_text(training_file(str(data), num_layers=1, train={"steps": 6}))
    train(configs.load(place / "small.toml"), place / "run", until=4)


@pytest.fixture
def run(stopped_once, tmp_path) -> Path:
    return Path(shutil.copytree(stopped_once, tmp_path / "run"))


def flip_a_digit(path: Path) -> None:
    text = path.read_text()
    place = text.index(".") + 1
    path.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def without_a_line(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2] + lines[3:]))


DAMAGES = [
    Path.unlink,
    cut_off,
    flip_a_digit,
    without_a_line,
    lambda path: path.write_text(""),
    lambda path: path.write_bytes(b"\xff\x00"),
]


@pytest.mark.parametrize(("damage", "name"), list(zip(DAMAGES, FILES * 3, strict=True)))
def test_a_damaged_history_is_restored_by_a_resumed_run_and_named_by_readers(run, name, damage):
    whole = (run / name).read_bytes()
    damage(run / name)
    with pytest.raises(ValueError, match=rf"{name}: is not the history .* --resume"):
        read_history(run, name)
    assert status(run).state == "damaged"
    checkpoint = runs.find_checkpoint(run)
    assert restore_history(run, checkpoint, 4) == [name]
    assert (run / name).read_bytes() == whole
    assert restore_history(run, checkpoint, 4) == []


def test_a_resumed_run_says_what_it_restored_and_ends_in_the_same_history(run, tmp_path):
    other = Path(shutil.copytree(run, tmp_path / "other"))
    resume(other)
    (run / "metrics.jsonl").unlink()
    restored = []

    def display(trainer):
        restored.extend(trainer.restored)
        return Watching()

    resume(run, display=display)
    assert restored == ["metrics.jsonl"]
    assert (run / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("damage", [Path.unlink, flip_a_digit, without_a_line])
def test_a_history_that_is_damaged_while_the_run_trains_is_written_anew(run, damage):
    def damage_both(metrics):
        if metrics.step == 5:
            for name in FILES:
                damage(run / name)

    resume(run, display=lambda _: Watching(damage_both))
    for name in FILES:
        assert [record["step"] for record in read_history(run, name)] == [1, 2, 3, 4, 5, 6]


def test_a_finished_run_is_restored_too(run):
    resume(run)
    whole = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_text("")
    again = resume(run)
    assert (again.last, again.restored) == (None, ("metrics.jsonl",))
    assert (run / "metrics.jsonl").read_bytes() == whole


def test_records_after_the_checkpoint_are_read_and_cut_when_the_run_is_resumed(run):
    path = run / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"step": 5, "loss": 1.0}\n{"step": 6, "lo')
    assert [record["step"] for record in read_history(run, path.name)] == [1, 2, 3, 4, 5]
    assert restore_history(run, runs.find_checkpoint(run), 4) == []
    assert path.read_text() == whole


@pytest.mark.parametrize(
    ("tail", "problem"),
    [
        ('{"step": 6}\n', "step 6 follows 4"),
        ('{"step": 4}\n', "step 4 follows 4"),
        ("\n", "no record of a step"),
        ("[]\n", "no record of a step"),
        ('{"stp": 5}\n', "no record of a step"),
        ('{"step": 5, "loss": null}\n', "no record of a step"),
    ],
)
def test_a_damaged_record_after_the_checkpoint_is_named(run, tail, problem):
    path = run / "metrics.jsonl"
    path.write_text(path.read_text() + tail)
    with pytest.raises(ValueError, match=rf"metrics\.jsonl: damaged, .*{problem}"):
        read_history(run, path.name)


def as_version_0_1_0_wrote_it(run: Path) -> Path:
    checkpoint = runs.find_checkpoint(run)
    contents = json.loads((checkpoint / "contents.json").read_text())
    for name in FILES:
        (checkpoint / name).unlink()
        del contents["files"][name]
    del contents["sha256"]
    (checkpoint / "contents.json").write_text(json.dumps(contents))
    return checkpoint


def test_a_run_of_version_0_1_0_resumes_if_its_history_is_complete(run):
    checkpoint = as_version_0_1_0_wrote_it(run)
    assert restore_history(run, checkpoint, 4) == []
    assert len(read_history(run, "metrics.jsonl")) == 4
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"metrics\.jsonl: the steps 1 to 4 are missing"):
        restore_history(run, checkpoint, 4)
    with pytest.raises(ValueError, match=r"metrics\.jsonl: the steps 1 to 4 are missing"):
        resume(run)
