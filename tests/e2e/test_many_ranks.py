"""Several processes train what one would: DDP and FSDP2 over gloo, started by torchrun."""

import json
import os
import shutil
import subprocess

import pytest
from safetensors.torch import load_file

from command_line import mixerloop
from mixerloop import config as configs
from mixerloop.config import DataConfig, RunConfig, TrainConfig
from mixerloop.model.checkpoint import load_model
from stacks import STACKS, stack_config
from torchrun import TORCHRUN, torchrun

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
def place(hops_data, tmp_path):
    shutil.copytree(hops_data, tmp_path / "data")
    (tmp_path / "mixer.toml").write_text(CONFIG.format(schedule="mixer_loop(2)"))
    (tmp_path / "full.toml").write_text(CONFIG.format(schedule="full_loop(2)"))
    return tmp_path


def train(*arguments, cwd, ranks=1):
    if ranks == 1:
        return mixerloop("train", *arguments, cwd=cwd)
    return torchrun("train", *arguments, cwd=cwd, ranks=ranks)


def losses(run, steps=30):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
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


@pytest.mark.parametrize(
    "drawn",
    [
        ("--train.depth", "uniform(1, 4)"),
        ("--train.depth", "uniform(1, 4)", "--train.depth-per", "sequence"),
        ("--train.schedule-at", 0, "2x(A F)", 0.5, "2x(A2 F)"),
    ],
    ids=["batch", "sequence", "onset"],
)
def test_ranks_come_and_go_and_depths_stay(place, drawn):
    """One, two and one ranks have the same depths and data; one rank has the same bits again."""
    short = ("--train.steps", 9, *drawn)
    train("mixer.toml", "--out", "drawn", *short, cwd=place)
    train("mixer.toml", "--out", "again", *short, "--until", 2, cwd=place)
    train("--resume", "again", cwd=place)
    train("mixer.toml", "--out", "ranks", *short, "--until", 3, cwd=place)
    train("--resume", "ranks", "--until", 6, cwd=place, ranks=2)
    train("--resume", "ranks", cwd=place)
    lines, again, ranks = (
        [json.loads(line) for line in (place / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("drawn", "again", "ranks")
    )
    assert again == lines
    for mine, theirs in zip(ranks, lines, strict=True):
        assert (mine["flops"], mine.get("passes")) == (theirs["flops"], theirs.get("passes"))
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=SAME)
    for run in ("drawn", "again", "ranks"):
        shutil.rmtree(place / run)


def test_one_process_hands_over_to_fsdp_whose_checkpoint_loads_in_one_process(place):
    train("full.toml", "--out", "one", cwd=place)
    fsdp = ("--train.parallel", "fsdp", "--train.micro_batch", 2, "--train.recompute", "true")
    train("full.toml", "--out", "parts", "--until", 10, cwd=place)
    train("--resume", "parts", *fsdp, "--until", 20, cwd=place, ranks=2)
    shards = sorted((place / "parts/checkpoints/step-20/optimizer").glob("*.safetensors"))
    assert len(shards) == 2
    model, _ = load_model(place / "parts")
    assert len(load_file(place / "parts/checkpoints/step-20/model.safetensors")) == len(
        list(model.parameters())
    )
    train("--resume", "parts", cwd=place)
    assert_same_losses(losses(place / "parts"), losses(place / "one"))


def test_three_ranks_resume_to_the_same_bits(place):
    """Sums over two do not depend on their order; over three they do."""
    small = ("--train.global_batch", 6, "--train.steps", 9, "--train.checkpoint_every", 9)
    train("full.toml", "--out", "whole", *small, cwd=place, ranks=3)
    train("full.toml", "--out", "parts", *small, "--until", 4, cwd=place, ranks=3)
    train("--resume", "parts", cwd=place, ranks=3)
    for name in ("model.safetensors", "optimizer/optimizer.safetensors"):
        whole, parts = (place / run / "checkpoints/step-9" / name for run in ("whole", "parts"))
        assert whole.read_bytes() == parts.read_bytes()
    assert (place / "whole/metrics.jsonl").read_bytes() == (
        place / "parts/metrics.jsonl"
    ).read_bytes()


UNEQUAL = """
import numpy as np
from mixerloop.config import run_config
from mixerloop.data.batches import Batch
from mixerloop.model.initialization import fresh_model
from mixerloop.training.freezing import train_only
from mixerloop.training.loss import Loss
from mixerloop.training.opened import recipe_of
from mixerloop.training.parallel import ParallelLoss, Ranks, joined, whole
from mixerloop.training.step import Computation, accumulate, clip

sizes = dict(num_layers=2, d_model=32, num_heads=1, d_head=16, vocab_size=50)
generator = np.random.default_rng(0)
tokens, labels = generator.integers(50, size=(2, 8, 20))
labels[:4][generator.random((4, 20)) < 0.9] = -100  # the first rank has few
labels[5] = -100

def config_of(ffn={"d_ffn": 48}, schedule="full_loop(2)", **train):
    model = {**sizes, **ffn, "schedule": schedule}
    train = {"steps": 9, "global_batch": 8, **train}
    return run_config({"model": model, "data": {"path": "x"}, "train": train})

def step(ranks, parallel, micro_batch, config):
    recipe = recipe_of(config)
    model = fresh_model(config.model, seed=1).double()
    train_only(model, recipe.weights)
    late = bool(recipe.weights.late)
    engine = ParallelLoss(
        Loss(model), ranks=ranks, parallel=parallel, may_skip=late,
        settle={"objective": recipe.objective, "depth": recipe.depths.depths[-1]},
    )
    share = 8 // ranks.num_ranks
    mine = slice(ranks.rank * share, (ranks.rank + 1) * share)
    computation = Computation(
        micro_batch=micro_batch, compute_dtype="float32", ranks=ranks,
        depths=recipe.depths, objective=recipe.objective,
    )
    accumulate(engine, Batch(3, tokens[mine], labels[mine]), computation)
    norm = clip([p for p in model.parameters() if p.grad is not None], 0.1)
    return {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}, norm

experts = {"ffn": "experts", "experts": {"d_ffn": 16, "num_experts": 4, "balance": 1.0}}
CASES = {
    "dense": (config_of(), ("ddp", "fsdp")),
    "experts": (config_of(experts), ("ddp",)),
    "sequences": (config_of(experts, depth="uniform(1, 5)", depth_per="sequence"), ("ddp",)),
    "batch": (config_of(depth="uniform(1, 5)"), ("ddp", "fsdp")),
    "some layers": (config_of(depth=[[1, "A@0.0 F@0.0"]], schedule_at=[]), ("ddp",)),
    "every pass": (config_of(objective={"kind": "every_pass", "readout": "coda"}), ("ddp", "fsdp")),
    "own schedule aside": (
        config_of(schedule="A@0.0 F@0.0", depth=[[1, "full_loop(2)"]]), ("ddp", "fsdp")
    ),
    "truncated": (config_of(depth="uniform(3, 5)", backprop=2), ("ddp",)),
}

with joined("cpu") as ranks:
    for case, (config, parallels) in CASES.items():
        alone, norm = step(Ranks(), "ddp", 8, config)
        for parallel in parallels:
            for micro_batch in (4, 3, 1):
                shared, shared_norm = step(ranks, parallel, micro_batch, config)
                where = case, parallel, micro_batch
                assert abs(shared_norm / norm - 1) < 1e-10, where
                assert shared.keys() == alone.keys(), where
                for name, gradient in alone.items():
                    error = float((shared[name] - gradient).abs().max() / gradient.abs().max())
                    assert error < 1e-10, (*where, name, error)
    print("the same")
"""


def test_ranks_that_score_unequally_share_one_mean(tmp_path):
    (tmp_path / "unequal.py").write_text(UNEQUAL)
    done = subprocess.run(
        [*TORCHRUN, "--nproc-per-node", "2", "unequal.py"],
        cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the same") == 2


def test_a_batch_that_does_not_divide_is_refused_and_leaves_nothing(place):
    with pytest.raises(AssertionError, match="a batch of 7 does not divide among 2 ranks"):
        train("mixer.toml", "--train.global_batch", 7, "--out", "x", cwd=place, ranks=2)
    assert not (place / "x").exists()


EVERY_STACK = [
    pytest.param(name, marks=[] if name == "hybrid" else pytest.mark.nightly) for name in STACKS
]


@pytest.mark.parametrize("name", EVERY_STACK)
def test_two_ranks_lose_what_one_does_with_every_kind(place, name):
    """The balance of experts is that of one window in both."""
    steps = 20  # every step enlarges the difference that rounding made before
    train_config = TrainConfig(
        **{"steps": steps, "global_batch": 4, "micro_batch": 1, "warmup_steps": 2},
        **{"peak_lr": 3e-3, "compute_dtype": "float32", "evaluate_windows": 4},
        tensorboard=False,
    )
    model, data = stack_config(name, "full_loop(2)"), DataConfig(path="data")
    config = RunConfig(model=model, data=data, train=train_config)
    (place / "small.toml").write_text(configs.dump(config))
    train("small.toml", "--out", "one", cwd=place)
    train("small.toml", "--out", "two", cwd=place, ranks=2)
    (one, _), (two, _) = (losses(place / run, steps) for run in ("one", "two"))
    assert one[-1] != one[0]
    assert two == pytest.approx(one, rel=SAME)
