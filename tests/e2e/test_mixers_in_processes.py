"""Every kind in real processes: killed and resumed in the same bits, and on one and two ranks."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from command_line import environment, mixerloop
from mixerloop import config as configs
from mixerloop.config import DataConfig, RunConfig, TrainConfig
from mixerloop.data.corpora import prepare_hops
from stacks import STACKS, stack_config

pytestmark = pytest.mark.slow

STEPS, KILLED_AFTER = 40, 6
SAME = 1e-5  # relative, of losses in float32 whose sums run in another order
COMPARED = 20  # steps; every step enlarges the difference that rounding made before
TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
    *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
]


@pytest.fixture(params=STACKS)
def place(request, tmp_path):
    """A folder with data and a config; the balance of experts is that of one window in both."""
    prepare_hops(tmp_path / "data")
    train = TrainConfig(
        steps=STEPS,
        global_batch=4,
        micro_batch=1,
        warmup_steps=2,
        peak_lr=3e-3,
        compute_dtype="float32",
        checkpoint_every=KILLED_AFTER,
        evaluate_windows=4,
        tensorboard=False,
    )
    config = RunConfig(
        model=stack_config(request.param, "full_loop(2)"), data=DataConfig(path="data"), train=train
    )
    (tmp_path / "small.toml").write_text(configs.dump(config))
    return tmp_path


def process(*command, cwd):
    return subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        env=environment(cwd),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def losses(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines]


def test_a_killed_run_resumes_to_the_same_bits(place):
    mixerloop("train", "small.toml", "--out", "whole", cwd=place)
    killed = process(
        *(sys.executable, "-m", "mixerloop", "train", "small.toml", "--out", "killed"), cwd=place
    )
    while not (place / "killed" / "checkpoints" / f"step-{KILLED_AFTER}").exists():
        assert killed.poll() is None, killed.communicate()[0]
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL, "the run ended before it was killed"
    killed.communicate()
    mixerloop("train", "--resume", "killed", cwd=place)
    for file in ("model.safetensors", "optimizer/optimizer.safetensors"):
        whole, parts = (
            load_file(place / run / "checkpoints" / f"step-{STEPS}" / file)
            for run in ("whole", "killed")
        )
        assert whole.keys() == parts.keys()
        assert all(torch.equal(tensor, parts[key]) for key, tensor in whole.items())


def test_two_ranks_lose_what_one_does(place):
    mixerloop("train", "small.toml", "--out", "one", cwd=place)
    both = process(*TORCHRUN, "-m", "mixerloop", "train", "small.toml", "--out", "two", cwd=place)
    said, _ = both.communicate()
    assert both.returncode == 0, said
    one, two = losses(place / "one"), losses(place / "two")
    assert len(one) == len(two) == STEPS
    assert one[-1] != one[0]
    assert two[:COMPARED] == pytest.approx(one[:COMPARED], rel=SAME)
