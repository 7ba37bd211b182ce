"""Twenty steps of nano for each loop: a change here is a change of every trained result."""

from dataclasses import replace

import pytest

from mixerloop.config import DataConfig, RunConfig, TrainConfig, preset
from mixerloop.data.corpora import prepare_hops
from mixerloop.data.tasks.hops import HopsSettings
from mixerloop.ops import native_library
from mixerloop.training.parallel import Ranks
from mixerloop.training.run_setup import begin
from mixerloop.training.trainer import Trainer

SAME = 1e-6  # relative: instruction sets sum in different orders, and 1e-7 was seen between them
STEPS = (1, 10, 20)
NO_KERNEL = native_library.library() is None
FORMS = [
    "torch",
    pytest.param("native", marks=pytest.mark.skipif(NO_KERNEL, reason="no compiled kernel")),
]
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


@pytest.mark.parametrize("loop", LOSSES)
@pytest.mark.parametrize("form", FORMS)
def test_twenty_steps_always_lose_the_same(loop, form, tmp_path):
    prepare_hops(tmp_path / "data", HopsSettings())
    config = RunConfig(
        model=replace(preset("nano"), schedule=loop),
        data=DataConfig(path=str(tmp_path / "data")),
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
    begin(tmp_path / "run", config, ranks=Ranks())
    collect = Collect()
    Trainer(tmp_path / "run", config, ranks=Ranks()).train([collect])
    found = tuple(collect.losses[step] for step in STEPS)
    assert found == pytest.approx(LOSSES[loop], rel=SAME)
