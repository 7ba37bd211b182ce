"""The trainer in one process: what it writes, how it goes on, when it refuses."""

import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import needs
from mixerloop import runs
from mixerloop.data.batches import Batches
from mixerloop.data.corpora import prepare_hops
from mixerloop.data.tasks.hops import Hops, HopsSettings
from mixerloop.files import is_locked, locked, remove_leftovers
from mixerloop.model.checkpoint import load_model
from mixerloop.ops.gated_delta_rule import choose_form
from mixerloop.training.metrics import TensorBoard, WeightsAndBiases
from mixerloop.training.parallel import Ranks
from mixerloop.training.position import read_position
from mixerloop.training.run_setup import begin, resumed_config
from mixerloop.training.status import find_runs, status
from mixerloop.training.trainer import Trainer, step_seed
from training_sessions import assert_same_run, contents, go, records, twelve_steps, with_train


@pytest.fixture
def data(tmp_path):
    prepare_hops(tmp_path / "data", HopsSettings())
    return tmp_path / "data"


@pytest.fixture
def config(data, tiny):
    return twelve_steps(data, tiny.changed(schedule="mixer_loop(2)"))


class Die:
    """A watcher that ends a session at a step as a kill would: nothing more is written."""

    def __init__(self, step):
        self.at = step

    def step(self, metrics, timing):
        if metrics.step == self.at:
            raise KeyboardInterrupt

    def flush(self):
        pass

    close = flush


def test_a_run_holds_what_it_says(tmp_path, config):
    outcome = go(tmp_path / "run", config)
    assert (outcome.step, outcome.finished, outcome.stopped_by) == (12, True, None)
    lines = records(tmp_path / "run/metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert [line["step"] for line in lines if "held_out_nll" in line] == [5, 10, 12]
    assert lines[0]["tokens"] == 4 * 39
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert sorted(runs.checkpoints(tmp_path / "run")) == [8, 12]
    model, saved = load_model(tmp_path / "run")
    assert saved == replace(config, model=model.config)
    provenance = json.loads((tmp_path / "run/provenance.json").read_text())
    assert provenance["seed"] == 1337
    assert provenance["forms"]["gated_delta_rule"] == "torch"


@pytest.mark.parametrize("stops", [[1], [4], [5, 6, 7], [3, 11]])
def test_stopped_and_resumed_it_is_the_same_run_to_the_bit(tmp_path, config, stops):
    go(tmp_path / "whole", config)
    for stop in stops:
        outcome = go(tmp_path / "parts", config, until=stop)
        assert (outcome.step, outcome.finished) == (stop, False)
    assert go(tmp_path / "parts", config).finished
    assert_same_run(contents(tmp_path / "whole"), contents(tmp_path / "parts"))


def test_steps_after_the_checkpoint_are_made_again(tmp_path, config):
    """As after a kill: metrics run ahead of the newest checkpoint, the last line is half there."""
    go(tmp_path / "whole", config)
    go(tmp_path / "killed", config, until=8)
    begin(tmp_path / "fresh", config, ranks=Ranks())
    for name in ("metrics.jsonl", "timing.jsonl"):
        text = (tmp_path / "killed" / name).read_text()
        (tmp_path / "fresh" / name).write_text(text + '{"step": 9, "lo')
    go(tmp_path / "fresh", config)
    assert_same_run(contents(tmp_path / "whole"), contents(tmp_path / "fresh"))


def test_recomputing_may_begin_on_the_way(tmp_path, config):
    go(tmp_path / "whole", config)
    go(tmp_path / "parts", config, until=5)
    go(tmp_path / "parts", with_train(config, recompute=True))
    assert_same_run(contents(tmp_path / "whole"), contents(tmp_path / "parts"))


def test_micro_batches_may_change_on_the_way(tmp_path, config):
    go(tmp_path / "whole", with_train(config, micro_batch=4))
    go(tmp_path / "parts", with_train(config, micro_batch=2), until=5)
    go(tmp_path / "parts", with_train(config, micro_batch=1))
    for mine, their in zip(
        records(tmp_path / "whole/metrics.jsonl"),
        records(tmp_path / "parts/metrics.jsonl"),
        strict=True,
    ):
        assert mine["loss"] == pytest.approx(their["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("schedule", "pass_residual"),
    [
        ("3x(A)", "none"),
        ("3x(F)", "none"),
        ("3x(A)", "ffn"),
        ("3x(F)", "mixer"),
        ("3x(A)", "block"),
    ],
)
def test_a_schedule_that_leaves_weights_out_can_be_resumed(
    tmp_path, config, schedule, pass_residual
):
    model = config.model.changed(schedule=schedule, pass_residual=pass_residual)
    config = replace(config, model=model)
    go(tmp_path / "whole", config)
    go(tmp_path / "parts", config, until=5)
    go(tmp_path / "parts", config)
    assert_same_run(contents(tmp_path / "whole"), contents(tmp_path / "parts"))


def test_matched_runs_start_from_the_same_weights_and_see_the_same_batches(tmp_path, config):
    trainers = []
    for loop in ("no_loop", "full_loop(2)"):
        changed = replace(config, model=replace(config.model, schedule=loop))
        begin(tmp_path / loop, changed, ranks=Ranks())
        trainers.append(Trainer(tmp_path / loop, changed, ranks=Ranks()))
    first, second = trainers
    assert first.model.schedule != second.model.schedule
    for (name, mine), their in zip(
        first.model.named_parameters(), second.model.parameters(), strict=True
    ):
        assert torch.equal(mine, their), name
    for step in (0, 3):
        mine, their = (trainer.batches.window_indices(step) for trainer in trainers)
        assert np.array_equal(mine, their)
    other = with_train(config, seed=7)
    begin(tmp_path / "other", other, ranks=Ranks())
    third = Trainer(tmp_path / "other", other, ranks=Ranks())
    assert not np.array_equal(third.batches.window_indices(0), first.batches.window_indices(0))


def test_what_is_drawn_in_a_step_does_not_depend_on_the_steps_before(tmp_path, config):
    drawn = {}

    class Drawing:
        def step(self, metrics, timing):
            drawn.setdefault(metrics.step, []).append(torch.rand(1).item())

        def flush(self):
            pass

        close = flush

    go(tmp_path / "whole", config, watchers=[Drawing()])
    go(tmp_path / "parts", config, until=5, watchers=[Drawing()])
    go(tmp_path / "parts", config, watchers=[Drawing()])
    assert all(first == second for first, second in drawn.values())
    assert len({first for first, _ in drawn.values()}) == 12
    assert step_seed(1, 2, 0) != step_seed(1, 2, 1)


@pytest.mark.parametrize("budget", [{"tokens": 12 * 4 * 39}, {"flops": 12 * 4 * 39 * 1.0}])
def test_a_budget_in_tokens_or_flops_ends_at_its_step(tmp_path, config, budget):
    if "flops" in budget:
        begin(tmp_path / "look", config, ranks=Ranks())
        per_token = Trainer(tmp_path / "look", config, ranks=Ranks()).flops_per_token
        budget = {"flops": budget["flops"] * per_token}
    assert go(tmp_path / "run", with_train(config, steps=None, **budget)).step == 12


@pytest.mark.parametrize("warmup_steps", [2, 1000])
def test_a_budget_in_seconds_ends_in_time_and_at_a_rate_near_zero(
    tmp_path, config, warmup_steps, monkeypatch
):
    """Even when the time is too short for the warm-up that was asked for."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) / 128)
    changed = with_train(config, steps=None, seconds=1.0, warmup_steps=warmup_steps)
    outcome = go(tmp_path / "run", changed)
    assert outcome.finished
    lines, times = (records(tmp_path / "run" / name) for name in ("metrics.jsonl", "timing.jsonl"))
    assert (
        sum(line["seconds"] for line in times[:-1])
        < 1.0
        <= read_position(outcome.checkpoint).seconds
    )
    rates = [line["learning_rate"] for line in lines]
    assert len(rates) > 20
    assert rates[-1] < max(rates) / 20
    assert max(rates) <= 1e-2


def test_waiting_for_data_counts(tmp_path, config, monkeypatch):
    begin(tmp_path / "run", config, ranks=Ranks())
    trainer = Trainer(tmp_path / "run", config, ranks=Ranks())
    read = Hops.read

    def slow(self, indices):
        time.sleep(0.1)
        return read(self, indices)

    monkeypatch.setattr(Hops, "read", slow)
    seconds = []

    class Keep:
        def step(self, metrics, timing):
            seconds.append(timing.seconds)

        def flush(self):
            pass

        close = flush

    trainer.train([Keep()], until=6)
    assert sum(seconds) >= 0.5  # six reads of a tenth of a second, one after another


def test_checkpoints_to_keep_are_kept(tmp_path, config):
    go(tmp_path / "run", with_train(config, checkpoint_every=1, keep_last=3, keep_every=4))
    assert sorted(runs.checkpoints(tmp_path / "run")) == [0, 4, 8, 10, 11, 12]


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, config):
    go(tmp_path / "run", config, until=4)
    trainer = Trainer(tmp_path / "run", config, ranks=Ranks())
    with torch.no_grad():
        trainer.model.final_norm.weight[0] = float("nan")
    windows = Batches(windows=trainer.windows, seed=1337, global_batch=4).window_indices(4)
    with pytest.raises(FloatingPointError) as caught:
        trainer.train()
    message = str(caught.value)
    assert message.startswith("step 5: the loss is nan; its batch is samples 16 to 19 of the order")
    assert ", ".join(map(str, windows)) in message
    assert message.endswith(
        "the last good checkpoint is " + str(tmp_path / "run/checkpoints/step-4")
    )
    assert sorted(runs.checkpoints(tmp_path / "run")) == [0, 4]


def test_a_gradient_that_is_not_finite_stops_the_run(tmp_path, config):
    begin(tmp_path / "run", config, ranks=Ranks())
    trainer = Trainer(tmp_path / "run", config, ranks=Ranks())
    trainer.model.final_norm.weight.register_hook(lambda gradient: gradient * float("inf"))
    before = trainer.model.embedding.weight.detach().clone()
    with pytest.raises(FloatingPointError, match="step 1: the gradient is"):
        trainer.train()
    assert torch.equal(trainer.model.embedding.weight, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_saves_and_stops(tmp_path, config, number):
    class Kill:
        def step(self, metrics, timing):
            if metrics.step == 5:
                os.kill(os.getpid(), number)

        def flush(self):
            pass

        close = flush

    go(tmp_path / "whole", config)
    outcome = go(tmp_path / "run", config, watchers=[Kill()])
    assert (outcome.step, outcome.finished, outcome.stopped_by) == (5, False, number)
    assert outcome.checkpoint.name == "step-5"
    assert go(tmp_path / "run", config).finished
    assert_same_run(contents(tmp_path / "whole"), contents(tmp_path / "run"))


def test_no_interrupt_loses_a_step_that_was_made(tmp_path, config):
    class Impatient:
        def step(self, metrics, timing):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)

        def flush(self):
            pass

        close = flush

    outcome = go(tmp_path / "run", config, watchers=[Impatient()])
    assert (outcome.step, outcome.stopped_by) == (1, signal.SIGINT)
    assert sorted(runs.checkpoints(tmp_path / "run")) == [0, 1]


def test_a_run_is_written_by_one_process_at_a_time(tmp_path, config):
    begin(tmp_path / "run", config, ranks=Ranks())
    assert not is_locked(tmp_path / "run")
    with locked(tmp_path / "run"):
        assert is_locked(tmp_path / "run")
        script = (
            "from mixerloop.files import locked; from pathlib import Path\n"
            f"with locked(Path({str(tmp_path / 'run')!r})): pass"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"process {os.getpid()} on " in done.stderr
    assert "is writing to this run" in done.stderr
    with locked(tmp_path / "run"):
        pass


def test_a_run_is_not_begun_twice(tmp_path, config):
    begin(tmp_path / "run", config, ranks=Ranks())
    with pytest.raises(ValueError, match="already exists; go on with mixerloop train --resume"):
        begin(tmp_path / "run", config, ranks=Ranks())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train": {"seed": 7}}, "train.seed was 1337 and would be 7"),
        ({"train": {"steps": 20}}, "train.steps was 12 and would be 20"),
        ({"train": {"tokens": 20000}}, "train.steps was 12 and would be not set"),
        ({"model": {"schedule": "no_loop"}}, "model.schedule was 3x(A2 F) and would be 3x(A F)"),
        ({"train": {"compute_dtype": "bfloat16"}}, "train.compute_dtype was float32"),
        ({"train": {"stepz": 7}}, "unknown key stepz"),
    ],
)
def test_a_config_that_computes_something_else_is_refused(tmp_path, config, overrides, message):
    begin(tmp_path / "run", config, ranks=Ranks())
    before = (tmp_path / "run/config.toml").read_bytes()
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        resumed_config(tmp_path / "run", config_file=None, overrides=overrides)
    assert message in str(caught.value)
    assert (tmp_path / "run/config.toml").read_bytes() == before


def test_a_config_edited_by_hand_is_held_against_the_checkpoint(tmp_path, config):
    outcome = go(tmp_path / "run", config, until=4)
    for changed in (
        with_train(config, peak_lr=1e-3),
        replace(config, model=replace(config.model, schedule="no_loop")),
    ):
        with pytest.raises(ValueError, match=r"step-4: .* and would be .*; it decides what"):
            Trainer(tmp_path / "run", changed, ranks=Ranks())
    outcome.checkpoint.rename(outcome.checkpoint.with_name("step-5"))
    with pytest.raises(ValueError, match="its position is not that of this run at this step"):
        Trainer(tmp_path / "run", config, ranks=Ranks())


def test_weights_that_are_not_finite_are_not_saved(tmp_path, config):
    go(tmp_path / "run", config, until=3)
    trainer = Trainer(tmp_path / "run", config, ranks=Ranks())

    class Poison:
        def step(self, metrics, timing):
            with torch.no_grad():
                trainer.model.get_parameter("layers.0.ffn_norm.weight")[0] = float("inf")

        def flush(self):
            pass

        close = flush

    message = (
        "step 4: weights are not finite after the update; the last good checkpoint is .*step-3"
    )
    with pytest.raises(FloatingPointError, match=message):
        trainer.train([Poison()])
    assert sorted(runs.checkpoints(tmp_path / "run")) == [0, 3]


def test_a_held_out_nll_that_is_not_finite_stops_the_run(tmp_path, config):
    huge = with_train(config, peak_lr=1e15, warmup_steps=0, steps=1)
    with pytest.raises(FloatingPointError, match="step 1: the held-out NLL is nan"):
        go(tmp_path / "run", huge)
    assert sorted(runs.checkpoints(tmp_path / "run")) == [0]
    assert records(tmp_path / "run/metrics.jsonl") == []


def test_a_config_may_change_how_it_is_computed(tmp_path, config):
    begin(tmp_path / "run", config, ranks=Ranks())
    overrides = {"train": {"micro_batch": 1, "checkpoint_every": 3, "parallel": "fsdp"}}
    new = resumed_config(tmp_path / "run", config_file=None, overrides=overrides)
    _, train = new.for_training()
    assert (train.micro_batch, train.checkpoint_every, train.parallel) == (1, 3, "fsdp")


def test_the_form_is_named_when_a_run_begins(tmp_path, config):
    """`auto` may mean another one on another machine, and a run keeps its own."""
    begun = begin(tmp_path / "run", with_train(config, form="auto"), ranks=Ranks())
    _, train = begun.for_training()
    assert train.form == choose_form("auto")
    other = {"train": {"form": "definition"}}
    with pytest.raises(ValueError, match=r"train\.form was .* and would be definition"):
        resumed_config(tmp_path / "run", config_file=None, overrides=other)
    auto = {"train": {"form": "auto"}}
    _, again = resumed_config(tmp_path / "run", config_file=None, overrides=auto).for_training()
    assert again == train


def test_data_may_move_but_not_change(tmp_path, config, data):
    begin(tmp_path / "run", config, ranks=Ranks())
    data.rename(tmp_path / "moved")
    moved = {"data": {"path": str(tmp_path / "moved")}}
    assert resumed_config(tmp_path / "run", config_file=None, overrides=moved)
    with pytest.raises(ValueError, match=r"no manifest\.json; prepare it"):
        resumed_config(tmp_path / "run", config_file=None, overrides={})
    prepare_hops(data, HopsSettings(seed=1))
    with pytest.raises(ValueError, match="not the data this run was trained on"):
        resumed_config(tmp_path / "run", config_file=None, overrides={})


def test_more_token_ids_than_the_model_has_are_refused(tmp_path, config):
    small = replace(config, model=replace(config.model, vocab_size=11))
    with pytest.raises(ValueError, match="12 token ids do not fit the model's vocabulary of 11"):
        begin(tmp_path / "run", small, ranks=Ranks())
    assert not (tmp_path / "run").exists()


def test_a_damaged_optimizer_is_refused(tmp_path, config):
    outcome = go(tmp_path / "run", config, until=4)
    path = outcome.checkpoint / "optimizer" / "optimizer.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=r"optimizer\.safetensors: damaged"):
        Trainer(tmp_path / "run", config, ranks=Ranks())


@pytest.mark.parametrize("limit", [2_000, 40_000])
def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(tmp_path, config, limit):
    """A limit on the size of files fails as a full disk does, in the middle of a write."""
    run = tmp_path / "run"
    go(run, config, until=4)
    trainer = Trainer(run, config, ranks=Ranks())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises((ValueError, OSError), match=r"cannot be written|File too large"):
            trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(runs.checkpoints(run)) == [0, 4]
    assert not list(run.rglob("*.partial"))
    assert go(run, config).finished


def test_too_little_space_is_said_before_anything_is_written(tmp_path, config, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    message = r"the disk is too full: [\d.,]+ \w+ are to be written and 1,000 bytes are free"
    with pytest.raises(ValueError, match=message):
        begin(tmp_path / "run", config, ranks=Ranks())
    assert not (tmp_path / "run").exists()
    monkeypatch.undo()
    go(tmp_path / "run", config, until=2)
    trainer = Trainer(tmp_path / "run", config, ranks=Ranks())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(ValueError, match=message):
        trainer.train()
    assert sorted(runs.checkpoints(tmp_path / "run")) == [0, 2]


def test_leftovers_of_a_kill_are_removed(tmp_path):
    (tmp_path / ".step-4.123.partial/optimizer").mkdir(parents=True)
    (tmp_path / ".metrics.jsonl.123.partial").write_text("x")
    (tmp_path / "step-4").mkdir()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-4"]


def test_tensorboard_reads_what_was_written(tmp_path, config):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    begin(run, config, ranks=Ranks())
    died = TensorBoard(run, start=0)  # after three steps, before there was a checkpoint
    with pytest.raises(KeyboardInterrupt):
        Trainer(run, config, ranks=Ranks()).train([died, Die(3)])
    died.close()
    assert sorted(runs.checkpoints(run)) == [0]
    for start, until in ((0, 6), (6, None)):
        board = TensorBoard(run, start=start)
        go(run, config, until=until, watchers=[board])
        board.close()
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    lines = records(run / "metrics.jsonl")
    points = events.Scalars("train/loss")
    assert [point.step for point in points] == list(range(1, 13))
    assert points[-1].value == pytest.approx(lines[-1]["loss"])
    assert [point.step for point in events.Scalars("held_out/nll")] == [5, 10, 12]


@needs.package("wandb").mark
def test_weights_and_biases_hears_of_every_step(tmp_path, config, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "run"
    begin(run, config, ranks=Ranks())
    watcher = WeightsAndBiases(run, project="tests", identity="abc", config={})
    go(run, config, watchers=[watcher])
    summary = dict(watcher._run.summary)
    watcher.close()
    lines = records(run / "metrics.jsonl")
    assert summary["_step"] == 12
    assert summary["train/loss"] == pytest.approx(lines[-1]["loss"])
    assert list(Path(run / "wandb").glob("offline-run-*"))


def test_status_of_runs(tmp_path, config):
    go(tmp_path / "runs/done", config)
    go(tmp_path / "runs/deeper/part", config, until=6)
    begin(tmp_path / "runs/begun", config, ranks=Ranks())
    begin(tmp_path / "runs/hurt", config, ranks=Ranks())
    (tmp_path / "runs/hurt/config.toml").write_text("[modle]")
    found = {Path(one.run).name: one for one in map(status, find_runs(tmp_path / "runs"))}
    assert {name: one.state for name, one in found.items()} == {
        "begun": "stopped",
        "done": "finished",
        "hurt": "damaged",
        "part": "stopped",
    }
    done = found["done"]
    assert (done.step, done.total_steps, done.schedule) == (12, 12, "3x(A2 F)")
    assert done.held_out_nll is not None
    assert found["part"].checkpoint_step == 6
    assert "unknown key modle" in str(found["hurt"].problem)
    with locked(tmp_path / "runs/deeper/part"):
        assert status(tmp_path / "runs/deeper/part").state == "running"
