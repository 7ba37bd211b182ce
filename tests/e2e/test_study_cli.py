"""`mixerloop study` as a user runs it: planned, killed, started again, reported."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import mixerloop

CONFIG = """
[model]
num_layers = 2
d_model = 16
num_heads = 2
d_head = 8
d_ffn = 24
vocab_size = 12

[data]
path = "nowhere"

[train]
steps = 8
global_batch = 4
warmup_steps = 1
compute_dtype = "float32"
checkpoint_every = 2
evaluate_every = 4
"""
STUDY = """
title = "A small study"
about = "For the tests."

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

[prefill]
sizes = ["nano"]
batches = [1]
length = 32
repeats = 2
"""
STUDY_COMMAND = (sys.executable, "-m", "mixerloop", "study", "study.toml")
PHASES = ("training", "nll", "hops", "transport")
CELL = "hops/mixer_loop(2)-seed1"
NUMBERS = ("nll.json", "hops.json", "transport.json")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("study")
    (place / "small.toml").write_text(CONFIG)
    (place / "study.toml").write_text(STUDY)
    return place


@pytest.fixture(scope="module")
def done(place):
    """The study, finished, and what it printed."""
    return mixerloop("study", "study.toml", "--out", "whole", cwd=place).stdout


def numbers(study: Path) -> dict:
    """Every number a study found, without where and when."""
    found = {}
    for run in sorted((study / "hops").iterdir()):
        if not run.is_dir():
            continue
        assert not run.name.startswith("."), "a leftover"
        found[run.name, "metrics"] = (run / "metrics.jsonl").read_text()
        for name in NUMBERS:
            result = json.loads((run / "results" / name).read_text())
            del result["provenance"], result["checkpoint"]
            found[run.name, name] = result
    comparison = json.loads((study / "hops" / "comparison.json").read_text())
    found["pairs"] = comparison["pairs"]
    return found


def test_from_a_file_to_a_report(place, done):
    lines = done.strip().splitlines()
    assert lines[0] == "A small study"
    assert lines[-1] == "report: whole/report.html"
    assert any(line.startswith("hops, held-out NLL, best first: ") for line in lines)
    study = place / "whole"
    for name in ("report.html", "report.md", "prefill.json", "plan.json"):
        assert (study / name).stat().st_size > 0
    names = {path.stem for path in (study / "figures").glob("*.svg")}
    assert names >= {"hops-curves", "hops-cost", "hops-accuracy", "prefill", "hops-schedules"}
    assert {path.stem for path in (study / "figures").glob("*.csv")} == names - {"hops-schedules"}
    status = json.loads(mixerloop("study", "status", "whole", "--json", cwd=place).stdout)
    assert [cell["state"] for cell in status[0]["cells"]] == ["done"] * 3


def test_the_same_seeds_give_the_same_numbers(place, done):
    mixerloop("study", "study.toml", "--out", "again", cwd=place)
    assert numbers(place / "again") == numbers(place / "whole")


def test_what_is_done_is_not_done_again(place, done):
    def stamps():
        results = [place / "whole" / "prefill.json", *(place / "whole").rglob("results/*.json")]
        return {path: path.stat().st_mtime_ns for path in results}

    before = stamps()
    shown = mixerloop("study", "study.toml", "--out", "whole", cwd=place)
    assert stamps() == before
    assert "training" not in shown.stderr


def killed_in(phase: str, place: Path, out: str) -> None:
    """Start the study and kill it as soon as it says that the phase has begun."""
    process = subprocess.Popen(
        [*STUDY_COMMAND, "--out", out],
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "HOME": str(place)},
    )
    assert process.stderr is not None
    seen = ""
    for line in process.stderr:
        seen += line
        if f"{CELL}: {phase}" in line:
            break
    else:
        pytest.fail(f"it never came to {phase}: {seen}")
    time.sleep(0.05 if phase == "training" else 0.0)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_killed_in_every_phase_it_ends_in_the_same_numbers(place, done):
    for phase in PHASES:
        killed_in(phase, place, "killed")
        assert not (place / "killed" / "report.html").exists()
    finished = mixerloop("study", "study.toml", "--out", "killed", cwd=place)
    assert "hops/no_loop-seed1" not in finished.stderr
    assert numbers(place / "killed") == numbers(place / "whole")


def test_a_cell_that_fails_is_named_and_the_rest_go_on(place, done):
    study = place / "broken"
    shutil.copytree(place / "whole", study)
    for name in ("mixer_loop(2)-seed1", "full_loop(2)-seed1"):
        (study / "hops" / name / "results" / "nll.json").unlink()
    checkpoint = max((study / "hops" / "mixer_loop(2)-seed1" / "checkpoints").iterdir())
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    ended = mixerloop("study", "study.toml", "--out", "broken", cwd=place, code=1)
    assert "1 cells failed: hops/mixer_loop(2)-seed1" in ended.stdout
    assert (study / "hops" / "full_loop(2)-seed1" / "results" / "nll.json").exists()
    status = json.loads(mixerloop("study", "status", "broken", "--json", cwd=place).stdout)
    states = {cell["name"]: cell for cell in status[0]["cells"]}
    assert states["hops/mixer_loop(2)-seed1"]["state"] == "failed"
    assert "model.safetensors" in states["hops/mixer_loop(2)-seed1"]["error"]


def test_the_plan_comes_first_and_a_dry_run_writes_nothing(place):
    shown = mixerloop("study", "study.toml", "--out", "dry", "--dry-run", cwd=place).stdout
    assert "3 cells, kept in dry" in shown
    assert "expected: " in shown
    assert not (place / "dry").exists()


def test_cells_can_be_picked_and_are_run_by_one_process_only(place):
    mixerloop("study", "study.toml", "--out", "picked", "--cells", "3,1", cwd=place)
    status = json.loads(mixerloop("study", "status", "picked", "--json", cwd=place).stdout)
    assert [cell["state"] for cell in status[0]["cells"]] == ["done", "waiting", "done"]
    assert not (place / "picked" / "report.html").exists()
    both = [
        subprocess.Popen(
            [*STUDY_COMMAND, "--out", "picked", "--cells", "2"],
            cwd=place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "HOME": str(place)},
        )
        for _ in range(2)
    ]
    said = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(f"{CELL}: training" in one for one in said) == 1


def test_a_report_of_runs_needs_no_study(place, done):
    runs = [f"whole/hops/{name}-seed1" for name in ("no_loop", "mixer_loop(2)")]
    shown = mixerloop("report", *runs, "--out", "both/two.html", cwd=place).stdout
    assert shown.strip().splitlines()[-1] == "report: both/two.html"
    assert "nothing says that they are matched" in (place / "both/two.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["study"], "name a study file"),
        (["study", "nowhere.toml"], "nowhere.toml: cannot read this study"),
        (["study", "study.toml", "--cells", "4"], "cells are numbers from 1 to 3"),
        (["study", "status", "nowhere"], "nowhere: not the folder of a study"),
        (["report"], "name a study's folder, or runs"),
        (["report", "nowhere", "--out", "x.html"], "nowhere: neither a study's folder nor a run"),
        (["report", "nowhere", "--out", "x.pdf"], "x.pdf: a page ends in .html"),
    ],
)
def test_what_cannot_be_done_is_refused(place, refusal, arguments, named):
    assert named in refusal(*arguments, cwd=place)


def test_missing_data_is_refused_before_anything_is_trained(place, refusal):
    yours = STUDY.replace('prepare = ["hops"]', 'prepare = ["text", "{corpus}"]')
    yours = yours.replace('["nll", "hops", "transport"]', '["nll", "transport"]')
    (place / "yours.toml").write_text(yours)
    named = refusal("study", "yours.toml", "--out", "yours", cwd=place)
    assert "yours.toml, line 8: this data needs files of yours: --corpus FILE" in named
    named = refusal("study", "yours.toml", "--out", "yours", "--corpus", "no.txt", cwd=place)
    assert "no.txt" in named
    assert not (place / "yours" / "hops").exists()


def test_a_study_that_changed_does_not_mix_with_what_was_trained(place, done, refusal):
    (place / "longer.toml").write_text(STUDY + "\n[parts.train]\nsteps = 9\n")
    longer = STUDY.replace("[prefill]", "[parts.train]\nsteps = 9\n\n[prefill]")
    (place / "longer.toml").write_text(longer)
    named = refusal("study", "longer.toml", "--out", "whole", cwd=place)
    assert "was trained with train.steps 8, and the study now says 9" in named
