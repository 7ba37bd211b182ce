"""The experts that tokens choose in each pass."""

import pytest
import torch

from mixerloop.config import DataConfig, RunConfig, TrainConfig
from mixerloop.interop.loading import open_subject
from mixerloop.measures import MEASURES
from mixerloop.model.ffns.experts import Experts
from mixerloop.reports.build import build_report
from mixerloop.reports.elements import as_markdown
from mixerloop.result_files import read_result
from mixerloop.studies.reporting import _of_runs
from mixerloop.training.sessions import train
from mixerloop.transport.measurement import Looking
from mixerloop.transport.routing import measure_routing, num_new_experts, routes_of
from stacks import large_model, stack_config


def test_experts_that_leave_are_counted():
    first = torch.tensor([[0, 1], [2, 3], [4, 5]])
    second = torch.tensor([[1, 0], [2, 1], [0, 1]])
    new = num_new_experts(torch.stack([first, second])[:, None])
    assert new.tolist() == [[[0, 1, 2]]]


def test_routes_are_those_of_each_pass():
    model = large_model(stack_config("experts", "full_loop(3)"))
    tokens = torch.randint(12, (2, 7))
    routes = routes_of(model, tokens, model.schedule, layers=[0, 1])
    assert routes.keys() == {0, 1}
    residual, seen = model.embed(tokens), []
    with torch.inference_mode():
        for occurrence in model.schedule:
            if occurrence.layer == 1 and occurrence.sublayer == "ffn":
                layer = model.layers[1]
                assert isinstance(layer.ffn, Experts)
                logits = layer.ffn.router(layer.get_submodule("ffn_norm")(residual))
                seen.append(logits.topk(layer.ffn.num_chosen).indices)
            residual = model.walk(residual, (occurrence,)).residual
    assert len(routes[1]) == 3
    assert all(torch.equal(one, other) for one, other in zip(routes[1], seen, strict=True))
    assert num_new_experts(torch.stack(routes[1])).any()


def test_routing_divergence_is_measured_and_kept(hops_data, tmp_path):
    steps = TrainConfig(steps=1, global_batch=2, warmup_steps=1, compute_dtype="float32")
    model = stack_config("experts", "full_loop(3)")
    config = RunConfig(model=model, data=DataConfig(path=str(hops_data)), train=steps)
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
    page = as_markdown(build_report(_of_runs([tmp_path / "run"])[0]), "figures", set())
    for layer in result.layers:
        for number, changed in enumerate(layer.changed, start=1):
            cells = f"| {layer.layer} | {number} to {number + 1} | {changed.value:.1%} ["
            assert cells in page
    assert "draws at random has 50% new experts" in page
    once = open_subject(tmp_path / "run", schedule="mixer_loop(2)")
    with pytest.raises(ValueError, match="runs each ffn with experts once"):
        measure_routing(once, Looking(windows=4))


def test_a_model_without_experts_has_no_routing(hops_run):
    with pytest.raises(ValueError, match="no layer of this model has an ffn that chooses experts"):
        measure_routing(open_subject(hops_run))
