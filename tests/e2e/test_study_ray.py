"""Cells on a real local Ray: two workers, one of them killed."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import needs
from command_line import COMMAND, environment, mixerloop
from small_model import training_file

CELL_PROCESS = "mixerloop.studies.cell_process"

STUDY = """
title = "On Ray"
[[parts]]
name = "hops"
config = "small.toml"
prepare = ["hops"]
arms = ["no_loop", "mixer_loop(2)"]
seeds = [1]
measure = ["nll"]
cpus = 1
"""
PATIENCE = 120
STEPS = 1500
NAMES = ("no_loop-seed1", "mixer_loop(2)-seed1")


def worker_in_training(study: Path) -> int | None:
    """A process of Ray whose cell has made some steps, and not yet half of them."""
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if CELL_PROCESS in words and str(study) in words:
            name = NAMES[int(words[words.index(str(study)) + 1]) - 1]
            metrics = study / "hops" / name / "metrics.jsonl"
            if metrics.is_file() and 0 < metrics.read_text().count("\n") < STEPS // 2:
                return parent
    return None


@pytest.mark.slow
@needs.package("ray").mark
@needs.PROC.mark
def test_a_killed_workers_cell_is_run_elsewhere_to_the_same_numbers(tmp_path):
    train = {"steps": STEPS, "checkpoint_every": 50}
    (tmp_path / "small.toml").write_text(training_file(train=train, num_layers=1))
    (tmp_path / "study.toml").write_text(STUDY)
    mixerloop("study", "study.toml", "--jobs", "1", "--out", "here", cwd=tmp_path)
    process = subprocess.Popen(
        [*COMMAND, "study", "study.toml", "--out", "there", "--engine", "ray"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(tmp_path),
    )
    try:
        began = time.monotonic()
        while (worker := worker_in_training(tmp_path / "there")) is None:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() - began < PATIENCE, "no worker began"
            time.sleep(0.02)
        os.kill(worker, signal.SIGKILL)
        said, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, said
    assert said.count(": done") == 2
    for name in NAMES:
        here, there = (tmp_path / place / "hops" / name for place in ("here", "there"))
        assert (here / "metrics.jsonl").read_text() == (there / "metrics.jsonl").read_text()
        first, second = (
            json.loads((run / "results" / "nll.json").read_text()) for run in (here, there)
        )
        assert first["nll"] == second["nll"]
    sessions = [
        len(json.loads((run / "provenance.json").read_text())["sessions"])
        for run in (tmp_path / "there" / "hops" / name for name in NAMES)
    ]
    assert sorted(sessions) == [1, 2]
    shutil.rmtree(tmp_path / "there")
