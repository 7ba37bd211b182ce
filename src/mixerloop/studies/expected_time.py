"""How long a cell will train here: a few real steps of its model, scaled up."""

import dataclasses
import time

from mixerloop.benchmarking.training import training_step
from mixerloop.config import RunConfig
from mixerloop.data.hops import Hops, HopsSettings
from mixerloop.model.accounting import training_flops_per_token
from mixerloop.model.initialization import fresh_model
from mixerloop.training.budget import budget_of

PROBE_TOKENS = 4096
PROBE_STEPS = 2


def expected_seconds(config: RunConfig) -> float:
    """Of training on this machine's processor, without the measurements after it."""
    data, train = config.for_training()
    if train.seconds is not None:
        return train.seconds
    context = data.context or Hops(HopsSettings(), "train").context
    model = fresh_model(config.model, seed=0, implementation=train.implementation)
    budget = budget_of(
        train,
        tokens_per_step=train.global_batch * context,
        flops_per_token=training_flops_per_token(model),
    )
    assert budget.steps is not None
    most = train.micro_batch or train.global_batch
    windows = max(1, min(most, PROBE_TOKENS // context))
    step = training_step(model, windows, context, train.compute_dtype)
    step()
    began = time.perf_counter()
    for _ in range(PROBE_STEPS):
        step()
    seconds = (time.perf_counter() - began) / PROBE_STEPS
    return seconds * budget.steps * train.global_batch / windows


def expected_of_all(configs: list[RunConfig]) -> list[float]:
    """Seeds do not change the time, so each model is tried once."""
    known: dict[RunConfig, float] = {}
    found = []
    for config in configs:
        _, train = config.for_training()
        key = dataclasses.replace(config, train=dataclasses.replace(train, seed=0))
        if key not in known:
            known[key] = expected_seconds(key)
        found.append(known[key])
    return found
