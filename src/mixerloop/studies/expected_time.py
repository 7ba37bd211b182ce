"""How long a cell will train here: a few real steps of its model, scaled up."""

import time
from collections.abc import Sequence

import torch

from mixerloop.benchmarking.training_steps import training_step
from mixerloop.config import RunConfig
from mixerloop.model.initialization import fresh_model
from mixerloop.ops.precision import choose_compute_dtype
from mixerloop.studies.table import Row

PROBE_TOKENS = 4096
PROBE_STEPS = 2


def seconds_per_window(config: RunConfig, *, context: int) -> float:
    """Seconds of training on this machine's CPU, without the measurements that follow."""
    _, train = config.for_training()
    model = fresh_model(config.model, seed=0, form=train.form)
    most = train.micro_batch or train.global_batch
    windows = max(1, min(most, PROBE_TOKENS // context))
    step = training_step(model, windows, context, choose_compute_dtype(train.compute_dtype, "cpu"))
    step()
    began = time.perf_counter()
    for _ in range(PROBE_STEPS):
        step()
    return (time.perf_counter() - began) / PROBE_STEPS / windows


def expected_of_all(rows: Sequence[Row], *, threads: int) -> dict[int, float]:
    """Expected seconds of training by cell number.

    Seeds and budgets do not change the speed, so each model is timed once, with the threads it will
    have. Cells for GPUs have no estimate. Cells without a context have none either: they are
    rejected before they train.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(min(threads, before))
    try:
        return _expected_of_all(rows)
    finally:
        torch.set_num_threads(before)


def _expected_of_all(rows: Sequence[Row]) -> dict[int, float]:
    known: dict[str, float] = {}
    expected = {}
    for row in rows:
        if row.gpus or row.context is None:
            continue
        config = row.with_config()
        _, train = config.for_training()
        if train.seconds is not None:
            expected[row.number] = train.seconds
            continue
        model = repr((config.model, row.context, train.form, train.compute_dtype))
        batch = train.micro_batch or train.global_batch
        if (key := f"{model} {batch}") not in known:
            known[key] = seconds_per_window(config, context=row.context)
        expected[row.number] = known[key] * row.amounts["tokens"] / row.context
    return expected
