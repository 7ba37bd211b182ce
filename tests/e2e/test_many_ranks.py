"""Several processes train what one would: DDP and FSDP2 over gloo, started by torchrun."""

import json
import os
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from mixerloop.data.hops import HopsSettings, write_hops
from mixerloop.model.checkpoint import load_model

pytestmark = pytest.mark.slow

SAME = 1e-5  # relative, of losses in float32 whose sums run in another order
CONFIG = """
[model]
num_layers = 2
d_model = 32
num_heads = 2
d_head = 16
d_ffn = 48
vocab_size = 12
schedule = "{schedule}"

[data]
path = "data"

[train]
steps = 30
global_batch = 8
warmup_steps = 3
peak_lr = 3e-3
compute_dtype = "float32"
evaluate_every = 10
evaluate_windows = 13
checkpoint_every = 100
tensorboard = false
"""


@pytest.fixture
def place(tmp_path):
    write_hops(tmp_path / "data", HopsSettings())
    (tmp_path / "mixer.toml").write_text(CONFIG.format(schedule="mixer_loop(2)"))
    (tmp_path / "full.toml").write_text(CONFIG.format(schedule="full_loop(2)"))
    return tmp_path


def train(*arguments, cwd, ranks=1):
    one = [sys.executable, "-m", "mixerloop"]
    many = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "mixerloop"),
    ]
    done = subprocess.run(
        [*(one if ranks == 1 else many), "train", *map(str, arguments)],
        cwd=cwd, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def losses(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 31))
    held_out = [line["held_out_nll"] for line in lines if "held_out_nll" in line]
    return [line["loss"] for line in lines], held_out


def assert_same_losses(mine, their):
    for one, other in zip(mine, their, strict=True):
        assert one == pytest.approx(other, rel=SAME)


def test_one_two_and_one_two_one_processes_lose_the_same(place):
    train("mixer.toml", "--out", "one", cwd=place)
    train("mixer.toml", "--out", "two", cwd=place, ranks=2)
    train("mixer.toml", "--out", "mixed", "--until", 10, cwd=place)
    stopped = train("--resume", "mixed", "--until", 20, cwd=place, ranks=2)
    assert "go on: torchrun --nproc-per-node 2 -m mixerloop train --resume mixed" in stopped.stdout
    train("--resume", "mixed", cwd=place)
    for name in ("two", "mixed"):
        assert_same_losses(losses(place / name), losses(place / "one"))
    sessions = json.loads((place / "mixed/provenance.json").read_text())["sessions"]
    assert [(one["step"], one["num_ranks"]) for one in sessions] == [(0, 1), (10, 2), (20, 1)]


def test_fsdp_trains_and_its_checkpoint_loads_in_one_process(place):
    train("full.toml", "--out", "one", cwd=place)
    fsdp = ("--train.parallel", "fsdp", "--train.micro_batch", 2)
    train("full.toml", "--out", "parts", *fsdp, "--until", 20, cwd=place, ranks=2)
    shards = sorted((place / "parts/checkpoints/step-20/optimizer").glob("*.safetensors"))
    assert len(shards) == 2
    model, _ = load_model(place / "parts")
    assert len(load_file(place / "parts/checkpoints/step-20/model.safetensors")) == len(
        list(model.parameters())
    )
    train("--resume", "parts", cwd=place)
    assert_same_losses(losses(place / "parts"), losses(place / "one"))


def test_one_process_hands_over_to_fsdp_with_recomputation(place):
    train("full.toml", "--out", "one", cwd=place)
    train("full.toml", "--out", "handed", "--until", 15, cwd=place)
    fsdp = ("--train.parallel", "fsdp", "--train.recompute", "true")
    train("--resume", "handed", *fsdp, cwd=place, ranks=2)
    assert_same_losses(losses(place / "handed"), losses(place / "one"))


def test_a_batch_that_does_not_divide_is_refused(place):
    with pytest.raises(AssertionError, match="a batch of 7 does not divide among 2 ranks"):
        train("mixer.toml", "--train.global_batch", 7, "--out", "x", cwd=place, ranks=2)
