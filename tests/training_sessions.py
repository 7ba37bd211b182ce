"""Runs of twelve steps, trained in this process as the command trains them."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from safetensors.torch import load_file

from mixerloop import runs
from mixerloop.config import run_config
from mixerloop.history import restore_history
from mixerloop.training.metrics import JsonLines, Metrics
from mixerloop.training.opened import open_run
from mixerloop.training.run_setup import begin, settled
from mixerloop.training.trainer import Trainer


class Watching:
    """A watcher that calls a function with the metrics of each step."""

    def __init__(self, call: Callable[[Metrics], Any] = lambda metrics: None) -> None:
        self._call = call

    def step(self, metrics, timing):
        self._call(metrics)

    def flush(self):
        pass

    close = flush


def twelve_steps(data, model, **keys):
    """The config of a run on prepared data; `keys` are more keys of its section `data`."""
    return run_config(
        {
            "model": model.table(),
            "data": {"path": str(data), **keys},
            "train": {
                "steps": 12,
                "global_batch": 4,
                "warmup_steps": 2,
                "peak_lr": 1e-2,
                "compute_dtype": "float32",
                "form": "torch",
                "evaluate_every": 5,
                "evaluate_windows": 6,
                "checkpoint_every": 4,
                "keep_last": 2,
            },
        }
    )


def with_train(config, **changes):
    return replace(config, train=replace(config.train, **changes))


def begun(run, config):
    """The trainer of a run, which is made if it does not exist."""
    if not run.exists():
        begin(run, settled(config))
    return Trainer(run, open_run(config))


def go(run, config, *, parent=None, until=None, watchers=()):
    """One session, as the command has them."""
    if not run.exists():
        begin(run, settled(config), parent=parent)
    trainer = Trainer(run, open_run(config))
    restore_history(run, trainer.newest, trainer.step)
    lines = JsonLines(run)
    try:
        return trainer.train([lines, *watchers], until=until)
    finally:
        lines.close()


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def weights(run, step):
    return load_file(runs.checkpoint_folder(run, step) / "model.safetensors")


def contents(run, step=12):
    """Weights, moments and metrics of a run that ended at a step."""
    folder = runs.checkpoint_folder(run, step)
    moments = load_file(folder / "optimizer" / "optimizer.safetensors")
    return weights(run, step) | moments, (run / "metrics.jsonl").read_bytes()


def assert_same_run(mine, their):
    (tensors, metrics), (others, other_metrics) = mine, their
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, others[name]), name
    assert metrics == other_metrics
