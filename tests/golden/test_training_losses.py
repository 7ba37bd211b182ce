"""Twenty steps of nano for each loop: a change here is a change of every trained result.

The fast tier trains one loop in each form for ten steps; the slow tier trains all of them.
"""

from dataclasses import replace

import pytest

import needs
from mixerloop.config import DataConfig, RunConfig, TrainConfig, preset
from mixerloop.training.opened import open_run
from mixerloop.training.run_setup import begin
from mixerloop.training.trainer import Trainer

SAME = 1e-6  # relative: instruction sets sum in different orders, and 1e-7 was seen between them
STEPS = (1, 10, 20)
LOSSES = {
    "no_loop": (7.7654810, 6.3304923, 5.4626097),
    "mixer_loop": (7.8122364, 6.3546607, 5.4848741),
    "ffn_loop": (8.1182721, 6.5314260, 5.6857085),
    "block_loop": (8.1181839, 6.5262510, 5.6741118),
    "full_loop": (8.0756536, 6.4855831, 5.6172127),
}


class Collect:
    def __init__(self):
        self.losses = {}

    def step(self, metrics, timing):
        self.losses[metrics.step] = metrics.loss

    def flush(self):
        pass

    close = flush


SLOW = pytest.mark.slow
EVERY = [
    pytest.param(loop, form, 20, marks=[SLOW, needs.KERNEL.mark] if form == "native" else SLOW)
    for loop in LOSSES
    for form in ("torch", "native")
]


@pytest.mark.parametrize(
    ("loop", "form", "steps"),
    [
        ("no_loop", "torch", 10),
        pytest.param("mixer_loop", "native", 10, marks=needs.KERNEL.mark),
        *EVERY,
    ],
)
def test_losses_of_a_short_training_never_change(loop, form, steps, hops_data, tmp_path):
    config = RunConfig(
        model=replace(preset("nano"), schedule=loop),
        data=DataConfig(path=str(hops_data)),
        train=TrainConfig(
            steps=20,
            global_batch=8,
            micro_batch=4,
            warmup_steps=5,
            peak_lr=1e-3,
            compute_dtype="float32",
            form=form,
            evaluate_windows=1,
        ),
    )
    begin(tmp_path / "run", config)
    collect = Collect()
    Trainer(tmp_path / "run", open_run(config)).train([collect], until=steps)
    recorded = [step for step in STEPS if step <= steps]
    losses = tuple(collect.losses[step] for step in recorded)
    assert losses == pytest.approx(LOSSES[loop][: len(recorded)], rel=SAME)
