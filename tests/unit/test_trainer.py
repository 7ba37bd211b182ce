"""The trainer in one process: what it writes, how it resumes, what it rejects."""

import itertools
import json
import math
import os
import re
import resource
import shutil
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import needs
from made_once import made_once
from mixerloop import runs
from mixerloop.data.batches import Batches
from mixerloop.data.corpora import prepare_hops
from mixerloop.data.tasks.hops import Hops, HopsSettings
from mixerloop.files import is_locked, locked, readable_size, remove_leftovers
from mixerloop.model.checkpoint import load_model
from mixerloop.model.initialization import fresh_model
from mixerloop.ops.gated_delta_rule import choose_form
from mixerloop.training.metrics import TensorBoard, WeightsAndBiases
from mixerloop.training.opened import open_data, open_run
from mixerloop.training.optimizer import decays
from mixerloop.training.parallel import Ranks
from mixerloop.training.position import read_position
from mixerloop.training.run_setup import begin, resumed_config, settled
from mixerloop.training.seeds import step_seed
from mixerloop.training.sessions import resume, train
from mixerloop.training.speed import Clock
from mixerloop.training.status import find_runs, status
from mixerloop.training.trainer import Trainer
from small_model import SMALL, small_config
from training_sessions import (
    Watching,
    assert_same_run,
    begun,
    contents,
    go,
    records,
    twelve_steps,
    weights,
    with_train,
)

TOKENS = 4 * 39  # of a step: four windows of 39 tokens
ROUNDING = 1e-5  # float32, sums in another order


def no_step(metrics):
    """A call for `Watching` in a session that has no step to make."""
    pytest.fail(f"step {metrics.step} was made")


@pytest.fixture(scope="module")
def config(hops_data):
    return twelve_steps(hops_data, small_config(**SMALL, schedule="mixer_loop(2)"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, config):
    """The run without interruption; read only."""
    made = made_once(tmp_path_factory, "whole", lambda place: go(place / "run", config))
    return made / "run"


@pytest.fixture(scope="module")
def five_steps(tmp_path_factory, config):
    """The same run, stopped at step 5; read only."""
    made = made_once(tmp_path_factory, "half", lambda place: go(place / "run", config, until=5))
    return made / "run"


@pytest.fixture
def run(five_steps, tmp_path):
    """A copy of the run that was stopped at step 5."""
    return Path(shutil.copytree(five_steps, tmp_path / "run"))


def test_a_run_holds_what_it_says(whole, config):
    lines = records(whole / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert [line["step"] for line in lines if "held_out_nll" in line] == [5, 10, 12]
    trainer = Trainer(whole, open_run(config))
    assert [line["tokens"] for line in lines] == [TOKENS * n for n in range(1, 13)]
    per_step = TOKENS * trainer.opened.flops_per_token
    assert [line["flops"] for line in lines] == [n * per_step for n in range(1, 13)]
    assert lines[-1]["loss"] < lines[0]["loss"]
    falling = [5e-3 * (1 + math.cos(math.pi * n / 10)) for n in range(10)]
    rates = [line["learning_rate"] for line in lines]
    assert rates == pytest.approx([5e-3, 1e-2, *falling], rel=1e-12)
    assert sorted(runs.checkpoints(whole)) == [8, 12]
    model, saved = load_model(whole)
    assert saved == replace(config, model=model.config)
    provenance = json.loads((whole / "provenance.json").read_text())
    assert provenance["seed"] == 1337
    assert provenance["forms"]["gated_delta_rule"] == "torch"
    assert (trainer.step, trainer.finished, trainer.computation.micro_batch) == (12, True, 4)
    assert trainer.train([Watching(no_step)]).checkpoint == whole / "checkpoints/step-12"


def test_the_speed_of_each_step_is_recorded(whole, config):
    position = read_position(whole / "checkpoints/step-12")
    assert (position.step, position.total_steps, position.seed) == (12, 12, 1337)
    assert position.finished
    assert position.data_checked
    lines = records(whole / "timing.jsonl")
    spent = list(accumulate(line["seconds"] for line in lines))
    assert spent[-1] <= position.seconds
    per_step = TOKENS * Trainer(whole, open_run(config)).opened.flops_per_token
    limits = []
    for step, (line, seconds) in enumerate(zip(lines, spent, strict=True), start=1):
        assert (line["step"], line["threads"]) == (step, torch.get_num_threads())
        assert line["tokens_per_second"] == pytest.approx(TOKENS / line["seconds"])
        assert line["seconds_left"] == pytest.approx((12 - step) * seconds / step, rel=0.01)
        limits.append(per_step / line["seconds"] / line["gemm_share"])
    assert limits == sorted(limits) or np.allclose(limits, sorted(limits))


def test_the_first_step_by_hand(tmp_path, config):
    """Loss, gradient, clipping, AdamW and validation, in plain torch.

    The gradient is clipped to a length at which the epsilon of AdamW shows how long it is.
    """
    clip_norm, weight_decay, rate = 1e-7, 0.5, 5e-3
    keys = {"clip_norm": clip_norm, "weight_decay": weight_decay, "evaluate_every": 1}
    config = with_train(config, micro_batch=3, **keys)
    go(tmp_path / "run", config, until=1)
    (line,) = records(tmp_path / "run/metrics.jsonl")

    model = fresh_model(config.model, seed=1337, form="torch")
    _, windows, held_out = open_data(config)
    batch = Batches(windows=windows, seed=1337, global_batch=4).read(0)
    loss = mean_cross_entropy(model, batch.inputs, batch.labels)
    loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    norm = float(torch.cat([gradient.flatten() for gradient in gradients.values()]).norm())
    assert line["loss"] == pytest.approx(loss.item(), rel=ROUNDING)
    assert line["grad_norm"] == pytest.approx(norm, rel=ROUNDING)
    assert line["learning_rate"] == rate

    decaying, trained = decays(model), weights(tmp_path / "run", 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            gradient = gradients[name] * clip_norm / (norm + 1e-6)
            parameter *= 1 - rate * weight_decay * decaying[name]
            parameter -= rate * gradient / (gradient.abs() + 1e-8)
            torch.testing.assert_close(
                trained[name], parameter.detach(), rtol=ROUNDING, atol=1e-7, msg=name
            )
    nll = mean_cross_entropy(model, *held_out.read(np.arange(6)))
    assert line["held_out_nll"] == pytest.approx(nll.item(), rel=ROUNDING)


def mean_cross_entropy(model, inputs, labels):
    logits = model(torch.from_numpy(inputs)).flatten(0, 1)
    return F.cross_entropy(logits, torch.from_numpy(labels).flatten(), ignore_index=-100)


def test_stopped_and_resumed_it_is_the_same_run_to_the_bit(tmp_path, config, whole):
    for stop in (1, 4, 5, 11):
        outcome = go(tmp_path / "parts", config, until=stop)
        assert (outcome.step, outcome.finished, outcome.stopped_by) == (stop, False, None)
        again = go(tmp_path / "parts", config, until=stop, watchers=[Watching(no_step)])
        assert again == outcome
    outcome = go(tmp_path / "parts", config)
    assert (outcome.step, outcome.finished, outcome.stopped_by) == (12, True, None)
    assert_same_run(contents(whole), contents(tmp_path / "parts"))


def test_after_a_kill_steps_are_made_again_and_recomputing_may_begin(run, config, whole):
    """Metrics run ahead of the newest checkpoint, and the last line is half there."""
    for name in ("metrics.jsonl", "timing.jsonl"):
        ahead = (whole / name).read_text().splitlines(keepends=True)[5:8]
        (run / name).write_text((run / name).read_text() + "".join(ahead) + '{"step": 9, "lo')
    go(run, with_train(config, recompute=True))
    assert_same_run(contents(whole), contents(run))


def test_micro_batches_may_change_when_a_run_is_resumed(run, config, whole):
    go(run, with_train(config, micro_batch=1), until=8)
    mine, theirs = (records(path / "metrics.jsonl")[5:8] for path in (run, whole))
    for line, other in zip(mine, theirs, strict=True):
        assert line["loss"] == pytest.approx(other["loss"], rel=ROUNDING)


@pytest.mark.parametrize(
    ("schedule", "pass_residual"),
    [("2x(A)", "ffn"), ("2x(F)", "mixer"), ("2x(A)", "block"), ("2x(F)", "none")],
)
def test_a_schedule_that_leaves_weights_out_can_be_resumed(
    tmp_path, config, schedule, pass_residual
):
    model = config.model.changed(schedule=schedule, pass_residual=pass_residual)
    config = with_train(replace(config, model=model), steps=3)
    go(tmp_path / "whole", config)
    go(tmp_path / "parts", config, until=2)
    go(tmp_path / "parts", config)
    assert_same_run(contents(tmp_path / "whole", 3), contents(tmp_path / "parts", 3))


def test_matched_runs_start_from_the_same_weights_and_see_the_same_batches(tmp_path, config):
    first, second = (
        begun(tmp_path / loop, replace(config, model=replace(config.model, schedule=loop)))
        for loop in ("no_loop", "full_loop(2)")
    )
    assert first.model.schedule != second.model.schedule
    for (name, mine), their in zip(
        first.model.named_parameters(), second.model.parameters(), strict=True
    ):
        assert torch.equal(mine, their), name
    for step in (0, 3):
        mine, their = (trainer.batches.window_indices(step) for trainer in (first, second))
        assert np.array_equal(mine, their)
    third = begun(tmp_path / "other", with_train(config, seed=7))
    assert not np.array_equal(third.batches.window_indices(0), first.batches.window_indices(0))


def test_what_is_drawn_in_a_step_depends_on_its_number_only(tmp_path, run, config):
    drawn = {}

    def draw(metrics):
        drawn.setdefault(metrics.step, []).append(torch.rand(1).item())

    go(tmp_path / "from-the-start", config, until=7, watchers=[Watching(draw)])
    go(run, config, until=7, watchers=[Watching(draw)])
    assert [len(numbers) for numbers in drawn.values()] == [1, 1, 1, 1, 1, 2, 2]
    assert len({number for numbers in drawn.values() for number in numbers}) == 7
    assert step_seed(1, 2, 0) == 0x4006CF6E5B453383
    assert step_seed(1, 2, 0) != step_seed(1, 2, 1)


def test_a_budget_in_tokens_or_flops_is_a_number_of_steps(tmp_path, config):
    trainer = begun(tmp_path / "steps", config)
    assert trainer.opened.tokens_per_step == TOKENS
    flops = 11.5 * TOKENS * trainer.opened.flops_per_token
    for budget in ({"tokens": 12 * TOKENS}, {"flops": flops}):
        changed = with_train(config, steps=None, **budget)
        assert begun(tmp_path / next(iter(budget)), changed).budget.steps == 12


def test_a_budget_in_seconds_ends_in_time_and_at_a_rate_near_zero(tmp_path, config, monkeypatch):
    """Even when the time is too short for the warm-up that was asked for."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) / 32)
    small = config.model.changed(num_layers=1, schedule="no_loop")
    config = replace(config, model=small)
    keys = {"warmup_steps": 1000, "evaluate_every": None, "checkpoint_every": 50}
    outcome = go(tmp_path / "run", with_train(config, steps=None, seconds=1.0, **keys))
    assert outcome.finished
    lines, times = (records(tmp_path / "run" / name) for name in ("metrics.jsonl", "timing.jsonl"))
    position = read_position(outcome.checkpoint)
    assert sum(line["seconds"] for line in times[:-1]) < 1.0 <= position.seconds
    assert position.total_steps is None
    assert times[-1]["seconds_left"] == 0.0
    rates = [line["learning_rate"] for line in lines]
    assert len(rates) > 20
    assert rates[-1] < max(rates) / 20
    assert max(rates) <= 1e-2


def test_the_clock_does_not_count_evaluation_and_checkpoints(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock = Clock(7.0)
    assert clock.seconds == 7.0
    clock.start()
    now[0] += 2
    with clock.stopped():
        now[0] += 30
        assert clock.seconds == 9.0
    now[0] += 3
    assert clock.seconds == 12.0


def test_waiting_for_data_counts(tmp_path, config, monkeypatch):
    trainer = begun(tmp_path / "run", config)
    read = Hops.read

    def slow(self, indices):
        time.sleep(0.1)
        return read(self, indices)

    monkeypatch.setattr(Hops, "read", slow)
    trainer.train(until=3)
    assert trainer.clock.seconds >= 0.2  # three reads of a tenth of a second, one after another


def test_checkpoints_to_keep_are_kept(tmp_path, config):
    go(tmp_path / "run", with_train(config, checkpoint_every=1, keep_last=2, keep_every=3), until=6)
    assert sorted(runs.checkpoints(tmp_path / "run")) == [0, 3, 5, 6]


@pytest.mark.parametrize("size", [4, 5])
def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, config, size):
    trainer = begun(tmp_path / "run", with_train(config, global_batch=size))
    trainer.train(until=2)
    with torch.no_grad():
        trainer.model.final_norm.weight[0] = float("nan")
    windows = ", ".join(map(str, trainer.batches.window_indices(2)[:4]))
    with pytest.raises(FloatingPointError) as caught:
        trainer.train()
    assert str(caught.value) == (
        f"step 3: the loss is nan; its batch is samples {2 * size} to {3 * size - 1} of the order, "
        f"windows {windows}{', ...' if size > 4 else ''}; the last good checkpoint is "
        f"{tmp_path / 'run/checkpoints/step-2'}"
    )
    assert sorted(runs.checkpoints(tmp_path / "run")) == [0, 2]


def test_a_gradient_that_is_not_finite_stops_the_run(tmp_path, config):
    trainer = begun(tmp_path / "run", config)
    trainer.model.final_norm.weight.register_hook(lambda gradient: gradient * float("inf"))
    before = trainer.model.embedding.weight.detach().clone()
    with pytest.raises(FloatingPointError, match="step 1: the gradient is"):
        trainer.train()
    assert torch.equal(trainer.model.embedding.weight, before)


def test_a_signal_saves_and_stops(tmp_path, config, whole):
    for step, number in ((3, signal.SIGTERM), (5, signal.SIGINT), (8, signal.SIGHUP)):

        def kill(metrics, step=step, number=number):
            if metrics.step == step:
                os.kill(os.getpid(), number)

        outcome = go(tmp_path / "run", config, watchers=[Watching(kill)])
        assert (outcome.step, outcome.finished, outcome.stopped_by) == (step, False, number)
        assert outcome.checkpoint == tmp_path / f"run/checkpoints/step-{step}"
    assert go(tmp_path / "run", config).finished
    assert_same_run(contents(whole), contents(tmp_path / "run"))


def test_a_step_that_a_signal_stops_between_micro_batches_leaves_no_trace(tmp_path, config):
    """Its gradient is half of a gradient, and the resumed run makes the step again."""
    config = with_train(config, micro_batch=2)
    go(tmp_path / "whole", config, until=2)
    trainer = begun(tmp_path / "run", config)
    backwards = itertools.count(1)

    def kill_in_third_step(gradient):
        if next(backwards) == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    trainer.model.final_norm.weight.register_hook(kill_in_third_step)
    outcome = trainer.train()
    assert (outcome.step, outcome.stopped_by) == (2, signal.SIGTERM)
    saved, wanted = (weights(tmp_path / name, 2) for name in ("run", "whole"))
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in saved.items())


def test_no_interrupt_loses_a_step_that_was_made(tmp_path, config):
    def interrupt_twice(metrics):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    outcome = go(tmp_path / "run", config, watchers=[Watching(interrupt_twice)])
    assert (outcome.step, outcome.stopped_by) == (1, signal.SIGINT)
    assert sorted(runs.checkpoints(tmp_path / "run")) == [0, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux knows where a folder went")
@pytest.mark.parametrize("at", [4, 6, 12])
def test_a_run_that_is_moved_while_it_is_trained_is_saved_where_it_is(
    tmp_path, config, whole, at, capfd
):
    def move(metrics):
        if metrics.step == at:
            (tmp_path / "run").rename(tmp_path / "moved")

    said = f"run was moved to {tmp_path}/moved while it was trained; all steps are saved there"
    watching = Watching(move)
    with pytest.raises(ValueError, match=said):
        train(config, tmp_path / "run", display=lambda _: watching)
    assert not (tmp_path / "run").exists()
    assert max(runs.checkpoints(tmp_path / "moved")) == at
    assert capfd.readouterr().err == ""  # no thread printed a traceback
    assert resume(tmp_path / "moved").outcome.finished
    assert_same_run(contents(whole), contents(tmp_path / "moved"))


def test_a_run_that_is_removed_while_it_is_trained_is_named(tmp_path, config, capfd):
    def remove(metrics):
        if metrics.step == 6:
            shutil.rmtree(tmp_path / "run")

    watching = Watching(remove)
    said = "run is gone; was it moved or removed? the steps after step-4 are lost"
    with pytest.raises(ValueError, match=re.escape(said)):
        train(config, tmp_path / "run", display=lambda _: watching)
    assert not (tmp_path / "run").exists()
    assert capfd.readouterr().err == ""


def test_a_run_is_written_by_one_writer_at_a_time(tmp_path):
    assert not is_locked(tmp_path)
    with locked(tmp_path):
        assert is_locked(tmp_path)
        message = f"process {os.getpid()} on .* is writing to this run"
        with pytest.raises(ValueError, match=message), locked(tmp_path):
            pass
    assert not is_locked(tmp_path)
    with locked(tmp_path):
        pass


def test_a_run_is_not_begun_twice(run, config):
    with pytest.raises(ValueError, match="already exists; go on with mixerloop train --resume"):
        begin(run, config)


@pytest.mark.parametrize(
    ("place", "error", "stays"),
    [
        ("_recorders", ValueError, False),
        ("note_session", OSError, False),
        ("Trainer._update", RuntimeError, False),
        ("Trainer._update", FloatingPointError, True),
    ],
)
def test_a_run_that_fails_before_its_first_step_does_not_block_the_next_call(
    tmp_path, config, monkeypatch, place, error, stays
):
    """A run stays if the error is one of those that name its checkpoint and what to do."""

    def fail(*_, **__):
        raise error("fails")

    monkeypatch.setattr(f"mixerloop.training.sessions.{place}", fail)
    with pytest.raises(error, match="fails"):
        train(config, tmp_path / "run")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == (["run"] if stays else [])
    again = resume if stays else partial(train, config)
    assert again(tmp_path / "run", until=1).outcome.step == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train": {"seed": 7}}, "train.seed was 1337 and would be 7"),
        ({"train": {"tokens": 20000}}, "train.steps was 12 and would be not set"),
        ({"train": {"form": "definition"}}, "train.form was torch and would be definition"),
        ({"model": {"schedule": "no_loop"}}, "model.schedule was 2x(A2 F) and would be 2x(A F)"),
        ({"train": {"stepz": 7}}, "unknown key stepz"),
    ],
)
def test_a_config_that_computes_something_else_is_rejected(five_steps, overrides, message):
    before = (five_steps / "config.toml").read_bytes()
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        resumed_config(five_steps, config_file=None, overrides=overrides)
    assert message in str(caught.value)
    assert (five_steps / "config.toml").read_bytes() == before


def test_a_config_edited_by_hand_is_compared_with_the_checkpoint(run, config):
    for changed in (
        with_train(config, peak_lr=1e-3),
        replace(config, model=replace(config.model, schedule="no_loop")),
    ):
        with pytest.raises(ValueError, match=r"step-5: .* and would be .*; it decides what"):
            Trainer(run, open_run(changed))
    (run / "checkpoints/step-5").rename(run / "checkpoints/step-6")
    with pytest.raises(ValueError, match="its position is not that of this run at this step"):
        Trainer(run, open_run(config))


def test_weights_that_are_not_finite_are_not_saved(run, config):
    trainer = Trainer(run, open_run(config))

    def poison(metrics):
        with torch.no_grad():
            trainer.model.get_parameter("layers.0.ffn_norm.weight")[0] = float("inf")

    with pytest.raises(FloatingPointError) as caught:
        trainer.train([Watching(poison)], until=6)
    assert str(caught.value) == (
        "step 6: weights are not finite after the update; the last good checkpoint is "
        f"{run / 'checkpoints/step-5'}"
    )
    assert sorted(runs.checkpoints(run)) == [4, 5]


def test_a_held_out_nll_that_is_not_finite_stops_the_run(tmp_path, config):
    huge = with_train(config, peak_lr=1e15, warmup_steps=0, steps=1)
    with pytest.raises(FloatingPointError, match="step 1: the held-out NLL is nan"):
        go(tmp_path / "run", huge)
    assert sorted(runs.checkpoints(tmp_path / "run")) == [0]
    assert records(tmp_path / "run/metrics.jsonl") == []


def test_a_config_may_change_how_it_is_computed(five_steps):
    overrides = {"train": {"micro_batch": 1, "checkpoint_every": 3, "parallel": "fsdp"}}
    new = resumed_config(five_steps, config_file=None, overrides=overrides)
    _, train = new.for_training()
    assert (train.micro_batch, train.checkpoint_every, train.parallel) == (1, 3, "fsdp")


def test_the_form_is_named_when_a_run_begins(tmp_path, config):
    """`auto` may mean another form on another machine, and a run keeps its own."""
    train = begin(tmp_path / "run", settled(with_train(config, form="auto"))).recipe.train
    assert train.form == choose_form("auto")
    auto = {"train": {"form": "auto"}}
    _, again = resumed_config(tmp_path / "run", config_file=None, overrides=auto).for_training()
    assert again == train


def test_data_may_move_but_not_change(tmp_path, config):
    data, moved = tmp_path / "data", tmp_path / "moved"
    prepare_hops(data, HopsSettings())
    begin(
        tmp_path / "run",
        replace(config, data=replace(config.data, path=str(data))),
        ranks=Ranks(),
    )
    data.rename(moved)
    overrides = {"data": {"path": str(moved)}}
    assert resumed_config(tmp_path / "run", config_file=None, overrides=overrides)
    with pytest.raises(ValueError, match=r"no manifest\.json; prepare it"):
        resumed_config(tmp_path / "run", config_file=None, overrides={})
    prepare_hops(data, HopsSettings(seed=1))
    with pytest.raises(ValueError, match="not the data this run was trained on"):
        resumed_config(tmp_path / "run", config_file=None, overrides={})


def test_more_token_ids_than_the_model_has_are_rejected(tmp_path, config):
    small = replace(config, model=replace(config.model, vocab_size=11))
    with pytest.raises(ValueError, match="12 token ids do not fit the model's vocabulary of 11"):
        begin(tmp_path / "run", small)
    assert not (tmp_path / "run").exists()


def test_a_damaged_optimizer_is_rejected(run, config):
    path = run / "checkpoints/step-5/optimizer/optimizer.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=r"optimizer\.safetensors: damaged"):
        Trainer(run, open_run(config))


@pytest.mark.parametrize("limit", [2_000, 30_000])
def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(run, config, limit):
    """A limit on the size of files fails as a full disk does, in the middle of a write."""
    trainer = Trainer(run, open_run(config))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises((ValueError, OSError), match=r"cannot be written|File too large"):
            trainer.train(until=6)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(runs.checkpoints(run)) == [4, 5]
    assert not list(run.rglob("*.partial"))
    assert go(run, config, until=6).step == 6


def test_too_little_space_is_said_before_anything_is_written(tmp_path, run, config, monkeypatch):
    trainer = Trainer(run, open_run(config))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    size = sum(parameter.numel() for parameter in trainer.model.parameters())
    needed = readable_size(12 * size)  # a weight and two moments in float32
    message = f"the disk is too full: {needed} are to be written and 1,000 bytes are free"
    with pytest.raises(ValueError, match=r"the disk is too full: .* and 1,000 bytes are free"):
        begin(tmp_path / "new", config)
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match=message):
        trainer.train(until=6)
    assert sorted(runs.checkpoints(run)) == [4, 5]


def test_leftovers_of_a_kill_are_removed(tmp_path):
    (tmp_path / ".step-4.123.partial/optimizer").mkdir(parents=True)
    (tmp_path / ".metrics.jsonl.123.partial").write_text("x")
    (tmp_path / "step-4").mkdir()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-4"]


def test_tensorboard_reads_what_was_written(tmp_path, config):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def die(metrics):
        if metrics.step == 2:
            raise KeyboardInterrupt

    run = tmp_path / "run"
    trainer = begun(run, config)
    died = TensorBoard(run, start=0)  # after two steps, before there was a checkpoint
    with pytest.raises(KeyboardInterrupt):
        trainer.train([died, Watching(die)])
    died.close()
    assert sorted(runs.checkpoints(run)) == [0]
    for start, until in ((0, 3), (3, 5)):
        board = TensorBoard(run, start=start)
        go(run, config, until=until, watchers=[board])
        board.close()
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    lines = records(run / "metrics.jsonl")
    points = events.Scalars("train/loss")
    assert [point.step for point in points] == [1, 2, 3, 4, 5]
    assert points[-1].value == pytest.approx(lines[-1]["loss"])
    assert [point.step for point in events.Scalars("held_out/nll")] == [5]


@needs.package("wandb").mark
def test_weights_and_biases_hears_of_every_step(run, config, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    watcher = WeightsAndBiases(run, project="tests", identity="abc", config={})
    go(run, config, until=7, watchers=[watcher])
    summary = dict(watcher._run.summary)
    watcher.close()
    assert summary["_step"] == 7
    last = records(run / "metrics.jsonl")[-1]
    assert summary["train/loss"] == pytest.approx(last["loss"])
    assert list(Path(run / "wandb").glob("offline-run-*"))


def test_status_of_runs(tmp_path, config, whole, five_steps):
    shutil.copytree(whole, tmp_path / "done")
    shutil.copytree(five_steps, tmp_path / "deeper/part")
    begin(tmp_path / "begun", config)
    shutil.copytree(five_steps, tmp_path / "hurt")
    (tmp_path / "hurt/config.toml").write_text("[modle]")
    found = {Path(one.run).name: one for one in map(status, find_runs(tmp_path))}
    assert {name: one.state for name, one in found.items()} == {
        "begun": "stopped",
        "done": "finished",
        "hurt": "damaged",
        "part": "stopped",
    }
    done = found["done"]
    assert (done.step, done.total_steps, done.schedule) == (12, 12, "2x(A2 F)")
    assert done.held_out_nll == records(whole / "metrics.jsonl")[-1]["held_out_nll"]
    assert found["part"].checkpoint_step == 5
    assert "unknown key modle" in str(found["hurt"].problem)
    with locked(tmp_path / "deeper/part"):
        assert status(tmp_path / "deeper/part").state == "running"
