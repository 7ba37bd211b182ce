"""Runs of every kind: resumed in the same bits, and the experts that tokens choose in each pass."""

import pytest
import torch
from safetensors.torch import load_file

from mixerloop.config import DataConfig, RunConfig, TrainConfig
from mixerloop.data.corpora import prepare_hops
from mixerloop.interop.loading import open_subject
from mixerloop.measures import MEASURES
from mixerloop.model.checkpoint import load_model
from mixerloop.model.ffns.experts import Experts
from mixerloop.result_files import read_result
from mixerloop.schedule import LOOPS
from mixerloop.studies.reporting import make_report
from mixerloop.training.parallel import Ranks
from mixerloop.training.run_setup import begin
from mixerloop.training.sessions import train
from mixerloop.training.trainer import Trainer
from mixerloop.transport.measurement import Looking
from mixerloop.transport.routing import measure_routing, num_new_experts, routes_of
from stacks import STACKS, large_model, stack_config

LOOP_OF = dict(
    zip(STACKS, [f"{loop}(2)" for loop in LOOPS if loop != "no_loop"] * len(STACKS), strict=False)
)
"""A loop for each stack in the fast tests; the slow ones have all."""
CASES = [
    pytest.param(
        name, loop, marks=() if loop == LOOP_OF[name] else pytest.mark.slow, id=f"{name}-{loop}"
    )
    for name in STACKS
    for loop in (one if one == "no_loop" else f"{one}(2)" for one in LOOPS)
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hops") / "data"
    prepare_hops(folder)
    return folder


def run_config(name, loop, data, **train):
    settings = {
        "steps": 4,
        "global_batch": 2,
        "micro_batch": 1,
        "warmup_steps": 1,
        "peak_lr": 0.01,
        "compute_dtype": "float32",
        "checkpoint_every": 2,
        "keep_last": 9,
        "evaluate_windows": 2,
        "tensorboard": False,
    }
    return RunConfig(
        model=stack_config(name, loop),
        data=DataConfig(path=str(data)),
        train=TrainConfig(**(settings | train)),
    )


@pytest.mark.parametrize(("name", "loop"), CASES)
def test_an_interrupted_run_ends_in_the_same_bits(name, loop, data, tmp_path):
    for run, stops in (("whole", [None]), ("parts", [1, 3, None])):
        config = begin(tmp_path / run, run_config(name, loop, data), ranks=Ranks())
        for until in stops:
            Trainer(tmp_path / run, config, ranks=Ranks()).train(until=until)
    for file in ("model.safetensors", "optimizer/optimizer.safetensors"):
        whole, parts = (
            load_file(tmp_path / run / "checkpoints" / "step-4" / file)
            for run in ("whole", "parts")
        )
        assert whole.keys() == parts.keys()
        assert all(torch.equal(tensor, parts[key]) for key, tensor in whole.items())
    fresh = load_file(tmp_path / "whole" / "checkpoints" / "step-0" / "model.safetensors")
    trained = load_file(tmp_path / "whole" / "checkpoints" / "step-4" / "model.safetensors")
    assert not any(torch.equal(tensor, trained[key]) for key, tensor in fresh.items())
    loaded, _ = load_model(tmp_path / "whole")
    assert all(buffer.isfinite().all() and not buffer.is_meta for buffer in loaded.buffers())


def test_experts_that_leave_are_counted():
    first = torch.tensor([[0, 1], [2, 3], [4, 5]])
    second = torch.tensor([[1, 0], [2, 1], [0, 1]])
    new = num_new_experts(torch.stack([first, second])[:, None])
    assert new.tolist() == [[[0, 1, 2]]]


def test_routes_are_those_of_each_pass():
    model = large_model(stack_config("experts", "full_loop(3)"))
    tokens = torch.randint(12, (2, 7))
    routes = routes_of(model, tokens, model.schedule)
    assert routes.keys() == {0, 1}
    residual, seen = model.embed(tokens), []
    with torch.inference_mode():
        for occurrence in model.schedule:
            if occurrence.layer == 1 and occurrence.sublayer == "ffn":
                layer = model.layers[1]
                assert isinstance(layer.ffn, Experts)
                seen.append(layer.ffn.chosen_experts(layer.get_submodule("ffn_norm")(residual)))
            residual = model.walk(residual, (occurrence,)).residual
    assert len(routes[1]) == 3
    assert all(torch.equal(one, other) for one, other in zip(routes[1], seen, strict=True))
    assert num_new_experts(torch.stack(routes[1])).any()
    assert not model.layers[1].ffn._forward_pre_hooks


def test_routing_divergence_is_measured_and_kept(data, tmp_path):
    config = run_config("experts", "full_loop(3)", data, steps=1, checkpoint_every=1)
    train(config, tmp_path / "run")
    subject = open_subject(tmp_path / "run")
    result = measure_routing(subject, Looking(windows=4))
    assert subject.results is not None
    assert read_result(subject.results, MEASURES["routing"]) == result
    assert [layer.layer for layer in result.layers] == [0, 1]
    for layer in result.layers:
        assert len(layer.changed) == len(layer.moved) == 2
        assert layer.moved_by_chance == 0.5
        for changed, moved in zip(layer.changed, layer.moved, strict=True):
            assert changed.lower <= changed.value <= changed.upper <= 1
            assert moved.value <= changed.value <= 2 * moved.value
    assert any(layer.changed[0].value > 0 for layer in result.layers)
    make_report([tmp_path / "run"], out=tmp_path / "page.html")
    page = (tmp_path / "page.md").read_text()
    for layer in result.layers:
        for number, changed in enumerate(layer.changed, start=1):
            cells = f"| {layer.layer} | {number} to {number + 1} | {changed.value:.1%} ["
            assert cells in page
    assert "draws at random has 50% new experts" in page
    once = open_subject(tmp_path / "run", schedule="mixer_loop(2)")
    with pytest.raises(ValueError, match="runs each ffn with experts once"):
        measure_routing(once, Looking(windows=4))


def test_a_model_without_experts_has_no_routing(data, tmp_path):
    config = run_config("attention", "full_loop(2)", data, steps=1)
    run = tmp_path / "run"
    Trainer(run, begin(run, config, ranks=Ranks()), ranks=Ranks()).train()
    with pytest.raises(ValueError, match="no layer of this model has an ffn that chooses experts"):
        measure_routing(open_subject(run))
