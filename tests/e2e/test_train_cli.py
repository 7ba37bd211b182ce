"""`mixerloop train` and `mixerloop runs` as a user runs them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import needs
from command_line import COMMAND, environment, mixerloop, refused
from mixerloop.notation import notation, resolve
from small_model import training_file

ROOT = Path(__file__).parents[2]
TRAIN = {"steps": 20, "warmup_steps": 2, "checkpoint_every": 5}
CONFIG = training_file("data", train=TRAIN, num_layers=1, schedule="mixer_loop(2)")


@pytest.fixture
def place(hops_data, tmp_path):
    shutil.copytree(hops_data, tmp_path / "data")
    (tmp_path / "small.toml").write_text(CONFIG)
    return tmp_path


def test_train_look_and_generate(place):
    done = mixerloop("train", "small.toml", cwd=place)
    last = done.stdout.splitlines()
    assert last[0].startswith("runs/small: 20 steps, 3,120 tokens, loss ")
    assert last[1] == "next: mixerloop generate runs/small --prompt-tokens 1 2 3"
    assert "step 1/20  loss 2." in done.stderr
    assert "of GEMM" in done.stderr

    listed = mixerloop("runs", cwd=place)
    assert "runs/small" in listed.stdout
    assert "finished" in listed.stdout
    (one,) = json.loads(mixerloop("runs", "--json", cwd=place).stdout)
    assert (one["state"], one["step"], one["schedule"]) == ("finished", 20, "A2 F")

    folder = "runs/small/checkpoints/step-20"
    assert "name the run it belongs to" in refused("train", "--resume", folder, cwd=place)
    again = mixerloop("train", "--resume", "runs/small", cwd=place)
    assert again.stdout == "runs/small: was finished already, at step 20\n"
    mixerloop("generate", "runs/small", "--prompt-tokens", 1, 2, "--max-tokens", 3, cwd=place)


def test_json_is_all_that_is_printed(place):
    done = mixerloop("train", "small.toml", "--json", "--out", "x", "--train.steps", 3, cwd=place)
    assert done.stderr == ""
    result = json.loads(done.stdout)
    assert (result["run"], result["step"], result["finished"]) == ("x", 3, True)
    assert result["last"]["held_out_nll"] > 0


@pytest.mark.parametrize(
    ("schedule", "folder"), [("no_loop", "small-no_loop"), ("1x(A3 F)", "small-1x_A3_F")]
)
def test_the_schedule_can_be_chosen_and_names_the_run(place, schedule, folder):
    mixerloop("train", "small.toml", "--schedule", schedule, "--train.steps", 2, cwd=place)
    (trained,) = json.loads(mixerloop("runs", "--json", cwd=place).stdout)
    assert trained["run"] == f"runs/{folder}"
    assert trained["schedule"] == notation(resolve(schedule, num_layers=1))


def test_the_schedule_is_given_once(place):
    options = ("--schedule", "no_loop", "--model.schedule", "full_loop")
    line = refused("train", "small.toml", *options, cwd=place)
    assert line == "mixerloop: --schedule is short for --model.schedule; give one of them"


def test_a_run_is_not_resumed_under_another_schedule(place):
    mixerloop("train", "small.toml", "--train.steps", 4, "--until", 2, cwd=place)
    line = refused("train", "--resume", "runs/small", "--schedule", "no_loop", cwd=place)
    assert "model.schedule" in line


def test_keys_can_be_given_as_options(place):
    options = ("--train.steps", 4, "--train.checkpoint_every", 2, "--train.seed", 7)
    more = ("--model.schedule", "full_loop(3)", "--train.recompute", "true", "--json")
    mixerloop("train", "small.toml", "--out", "x", *options, *more, cwd=place)
    resolved = (place / "x/config.toml").read_text()
    for line in ("steps = 4", "checkpoint_every = 2", "seed = 7", "recompute = true"):
        assert line in resolved
    assert 'schedule = "(A F)3"' in resolved


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_is_saved_and_says_how_to_go_on(place, signal_in_step, number):
    signal_in_step(number, 3)
    ended = mixerloop("train", "small.toml", "--out", "x", cwd=place, code=128 + number)
    assert f"x: stopped by {number.name} at step 3" in ended.stdout
    assert ended.stdout.endswith("go on: mixerloop train --resume x\n")
    (run,) = json.loads(mixerloop("runs", ".", "--json", cwd=place).stdout)
    assert (run["state"], run["step"], run["checkpoint_step"]) == ("stopped", 3, 3)
    resumed = mixerloop("train", "--resume", "x", "--until", 5, cwd=place)
    assert "x: stopped at step 5, which is saved" in resumed.stdout


@pytest.mark.nightly
def test_killed_at_random_moments_it_ends_in_the_same_bits():
    script = ROOT / "benchmarks" / "kill_and_resume.py"
    done = subprocess.run(
        [sys.executable, str(script), "--kills", "3", "--steps", "300"],
        capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "300 steps: bit-identical" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["train"], ["name a config to train, or a run to go on with"]),
        (["train", "nix.toml"], ["nix.toml: there is no such file"]),
        (["train", "--resume", "nix"], ["nix: there is no such run"]),
        (["train", "--resume", "x", "--out", "y"], ["leave --out out"]),
        (["train", "small.toml", "--out", "data"], ["data already exists", "--resume data"]),
        (["train", "small.toml", "--data.path", "nix"], ["nix: no manifest.json; prepare it"]),
        (["train", "small.toml", "--data.context", 9], ["39 tokens, not 9"]),
        (["train", "small.toml", "--train.steps", -1], ["train.steps must be above 0"]),
        (["train", "small.toml", "--model.schedule", "2x(A F)"], ["2 layers; the model has 1"]),
        pytest.param(
            ["train", "small.toml", "--train.device", "cuda"],
            ["no CUDA device here"],
            marks=needs.NO_CUDA.mark,
        ),
        (["train", "small.toml", "--out", "small.toml/x"], ["small.toml/x: cannot be made"]),
        (["train", "small.toml", "--train.steps", 10**400], ["train.steps must be at most 1e+30"]),
        (["train", "small.toml", "--train.tokens", 10**29], ["steps, more than"]),
        (["train", "small.toml", "--until", 0], ["until must be at least 1"]),
        (["train", "small.toml", "--train.global_batch", 10**12], ["must be at most 16,777,216"]),
        (["runs", "nix"], ["nix: there is no such folder"]),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(place, arguments, parts):
    before = sorted(path.name for path in place.iterdir())
    line = refused(*arguments, cwd=place)
    assert all(part in line for part in parts), line
    assert sorted(path.name for path in place.iterdir()) == before


def test_training_goes_on_when_nobody_listens(place):
    whole = " ".join([*COMMAND, "train", "small.toml", "--out", "x"])
    subprocess.run(f"{whole} 2>&1 >/dev/null | true", shell=True, cwd=place, env=environment(place))
    deadline = time.monotonic() + 60
    while not (place / "x/checkpoints/step-20").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_an_option_that_does_not_exist_is_refused_with_the_near_one(place):
    done = mixerloop("train", "small.toml", "--train.checkpoint_evry", 3, cwd=place, code=2)
    assert "--train.checkpoint-every" in done.stderr.replace("_", "-")
    assert not (place / "runs").exists()


def test_a_folder_that_cannot_be_written_is_named(place):
    if os.geteuid() == 0:
        target = "/proc/run"
    else:
        (place / "closed").mkdir(mode=0o500)
        target = "closed/run"
    line = refused("train", "small.toml", "--out", target, cwd=place)
    assert f"{target}: cannot be" in line
