"""Cells side by side: the same numbers for any number of jobs, whatever is killed."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import needs
from command_line import COMMAND, environment
from mixerloop import machine
from mixerloop.start import STOPPING
from saved_results import as_printed
from small_model import training_file

NIGHTLY = ((signal.SIGTERM, False), (signal.SIGHUP, True))
CELL_PROCESS = "mixerloop.studies.cell_process"

STUDY = """
title = "Side by side"
[[parts]]
name = "hops"
config = "small.toml"
prepare = ["hops"]
arms = ["no_loop", "mixer_loop(2)", "full_loop(2)"]
seeds = [1]
measure = ["nll", "hops", "transport"]
[parts.transport]
windows = 4
positions = 4
"""
STEPS = 300
SAVED = 20  # steps after which there is a checkpoint to go on from
PATIENCE = 120
NUMBERS = ("nll.json", "hops.json", "transport.json")

pytestmark = [pytest.mark.slow, needs.PROC.mark]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("jobs")
    train = {"steps": STEPS, "checkpoint_every": 10, "evaluate_every": 100}
    (place / "small.toml").write_text(training_file(train=train))
    (place / "study.toml").write_text(STUDY)
    return place


def without_a_choice(variables):
    """With the number of threads left to the study."""
    return {name: value for name, value in variables.items() if name != machine.NUM_THREADS}


def start(place, out, *options):
    return subprocess.Popen(
        [*COMMAND, "study", "study.toml", "--out", out, *options],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=without_a_choice(environment(place)),
        start_new_session=True,
        preexec_fn=hear_all,
    )


def hear_all():
    """A shell starts background work with Ctrl-C ignored, and what it starts inherits that."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_DFL)


def finish(place, out, *options):
    process = start(place, out, *options)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    return said


@pytest.fixture(scope="module")
def alone(place):
    finish(place, "alone", "--jobs", "1")
    return numbers(place / "alone")


def numbers(study: Path) -> dict:
    found = {}
    for run in sorted(path for path in (study / "hops").iterdir() if path.is_dir()):
        assert not run.name.startswith("."), "a leftover"
        found[run.name, "metrics"] = (run / "metrics.jsonl").read_text()
        for name in NUMBERS:
            result = as_printed(run / "results" / name)
            del result["provenance"], result["checkpoint"]
            found[run.name, name] = result
    assert len(found) == 3 * (1 + len(NUMBERS))
    found["pairs"] = json.loads((study / "hops" / "comparison.json").read_text())["pairs"]
    return found


def cells_at_work(study: Path) -> dict[int, int]:
    """Cells that a process is at work on, and the process."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if CELL_PROCESS in words and str(study) in words:
            found[int(words[words.index(str(study)) + 1])] = int(folder.name)
    return found


def wait_for(condition, what):
    began = time.monotonic()
    while not (found := condition()):
        assert time.monotonic() - began < PATIENCE, f"{what} never came"
        time.sleep(0.02)
    return found


def two_in_training(study: Path) -> dict[int, int] | None:
    """Both processes, when both have a checkpoint and neither has made half of its steps."""
    processes = cells_at_work(study)
    lines = [
        (path / "metrics.jsonl").read_text().count("\n")
        for path in (study / "hops").glob("*")
        if (path / "metrics.jsonl").is_file()
    ]
    both = (
        len(processes) == 2 and len(lines) == 2 and all(SAVED < one < STEPS // 2 for one in lines)
    )
    return processes if both else None


def test_the_number_of_jobs_changes_no_number_and_no_module_of_the_folder_runs(place, alone):
    (place / "json.py").write_text("raise SystemExit('a module of the current folder was run')")
    said = finish(place, "two", "--jobs", "2")
    (place / "json.py").unlink()
    assert "2 cells at a time" in said
    assert numbers(place / "two") == alone


def test_a_worker_that_is_killed_is_started_again(place, alone):
    process = start(place, "worker", "--jobs", "2")
    processes = wait_for(lambda: two_in_training((place / "worker").resolve()), "training")
    os.kill(min(processes.values()), signal.SIGKILL)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert said.count("its process was killed (SIGKILL); started again") == 1
    assert numbers(place / "worker") == alone


@pytest.mark.parametrize("whole_group", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_killed_study_leaves_no_process_and_loses_nothing(place, alone, whole_group):
    out = "group" if whole_group else "parent"
    study = (place / out).resolve()
    process = start(place, out, "--jobs", "2")
    wait_for(lambda: two_in_training(study), "training")
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not cells_at_work(study), "the end of all processes")
    sessions = {path.parent: None for path in (study / "hops").glob("*/metrics.jsonl")}
    finish(place, out, "--jobs", "2")
    assert numbers(study) == alone
    for run in sessions:
        facts = json.loads((run / "provenance.json").read_text())
        assert [session["step"] > 0 for session in facts["sessions"]] == [False, True]


@pytest.mark.parametrize(
    ("number", "whole_group"),
    [
        (signal.SIGINT, True),
        *(pytest.param(*case, marks=pytest.mark.nightly) for case in NIGHTLY),
    ],
)
def test_a_study_that_is_told_to_stop_saves_its_cells(place, alone, number, whole_group):
    out = f"told-{number.name}-{whole_group}"
    process = start(place, out, "--jobs", "2")
    study = (place / out).resolve()
    wait_for(lambda: two_in_training(study), "training")
    (os.killpg if whole_group else os.kill)(process.pid, number)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert said.count("stopped; the same command goes on from here") == 2
    assert not cells_at_work(study)
    finish(place, out)
    assert numbers(study) == alone


@pytest.mark.nightly
def test_killed_in_every_phase_it_ends_in_the_same_numbers(place, alone):
    for phase in ("nll", "hops", "transport"):
        process = start(place, "phases", "--jobs", "1")
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if f"mixer_loop(2)-seed1: {phase}" in line:
                break
        else:
            pytest.fail(f"it never came to {phase}: {said}")
        process.kill()
        process.communicate()
        assert not (place / "phases/report.html").exists()
    finish(place, "phases", "--jobs", "1")
    assert numbers(place / "phases") == alone
