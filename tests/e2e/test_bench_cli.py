"""`mixerloop bench`: it runs, it says what it should, and it checks before it times.

How fast anything is, is not tested: machines are shared. `make bench` measures.
"""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from command_line import mixerloop, refused
from mixerloop.benchmarking import core_speed as core
from mixerloop.benchmarking import measure
from mixerloop.benchmarking import operator_speed as operator
from mixerloop.benchmarking import training_speed as training
from mixerloop.benchmarking.measure import Quartiles, Timing, check_close
from mixerloop.config import preset
from mixerloop.evaluation.core.asking import asked
from mixerloop.evaluation.core.bundle import Bundle
from mixerloop.model.initialization import fresh_model
from mixerloop.model.mixers.gated_delta_net import GatedDeltaNet
from mixerloop.ops import native_library

BUNDLE = Path(__file__).parents[1] / "data" / "core_bundle"
NANO = {
    "prefill": ("--sizes", "nano", "--batches", "1", "2", "--length", "40", "--warmup", "1"),
    "decode": ("--size", "nano"),
    "transport": ("--size", "nano", "--windows", "2", "--context", "40"),
    "train": ("--size", "nano", "--batch", "2", "--length", "40", "--compute-dtype", "bfloat16"),
}


@pytest.mark.parametrize("what", NANO)
def test_the_figures_as_json(what):
    done = mixerloop("bench", what, *NANO[what], "--repeats", "2", "--json")
    found = json.loads(done.stdout)
    assert {"commit", "machine", "seed", "form", "compute_dtype", "busy_cores"} <= set(
        found["provenance"]
    )
    cases = found.get("cases", [])
    if what == "prefill":
        assert [(case["size"], case["batch"]) for case in cases] == [("nano", 1), ("nano", 2)]
        for case in cases:
            low, high = case["mixer_over_full_quartiles"]
            assert 0 < low <= case["mixer_over_full"] <= high
            assert set(case["milliseconds"]) == {"no_loop", "mixer_loop", "full_loop"}
            assert case["flop_limit"] > 1
    elif what == "decode":
        assert [case["prefix"] for case in cases] == [64, 512, 1024, 2048, 8192]
        assert len({case["state_bytes"] for case in cases}) == 1
        assert found["recompute_over_decode"] > 0
    elif what == "transport":
        assert found["plain_over_shared"] > 0
        assert found["work_limit"] > 1
        assert found["largest_difference"] <= 1e-6
    else:
        assert [case["loop"] for case in cases] == ["no_loop", "mixer_loop", "full_loop"]
        assert all(case["gemm_floor_ratio"] > 0 for case in cases)


@pytest.mark.slow
def test_the_operator_beside_its_peers():
    done = mixerloop("bench", "operator", "--shapes", "15m", "--repeats", "1", "--json")
    (shape,) = json.loads(done.stdout)["shapes"]
    assert shape["shape"] == [4, 1024, 4, 72]
    there = {name for name, package in operator.PEERS.items() if importlib.util.find_spec(package)}
    assert there <= set(shape["forward"])
    assert set(operator.PEERS) - there <= set(shape["missing"])
    ratios = (shape["ratio_forward"], shape["ratio_forward_backward"])
    assert all(ratio > 0 for ratio in ratios) if "transformers" in there else ratios == (None, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("prefill", "--sizes", "15n"), "unknown preset '15n'; did you mean 15m?"),
        (("prefill", "--batches", "0"), "batches must be at least 1, got 0"),
        (("train", "--loops", "mixer_lop"), "did you mean"),
        (("train", "--repeats", "0"), "repeats must be at least 1"),
        (("operator", "--shapes", "15n"), "unknown shape '15n'; did you mean 15m?"),
        (("operator", "--shapes"), "name at least one shape"),
        (("prefill", "--batches"), "name at least one batch"),
        (("train", "--loops"), "name at least one loop"),
        (("decode", "--schedule", "7x(A F)"), "the model has 6"),
        (("core", "--examples", "0"), "examples must be at least 1, got 0"),
        (("core", "--threads", "0"), "threads must be at least 1, got 0"),
        (("core", "--bundle", str(BUNDLE), "--tasks", "coulours"), "did you mean"),
        (("core", "--bundle", "nowhere"), "there is no such bundle"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message):
    assert message in refused("bench", *arguments)


def test_a_peer_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(operator.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(native_library, "library", lambda: None)
    rules, missing = operator.rules_here()
    assert list(rules) == ["torch"]
    assert missing == ["native", "transformers", "fla_naive"]


def test_what_computes_something_else_is_not_timed(monkeypatch):
    wrong = operator.ours("torch")

    def off(inputs):
        output, state = wrong(inputs)
        return output + 1e-2, state

    monkeypatch.setattr(operator, "rules_here", lambda: ({"torch": wrong, "off": off}, []))
    with pytest.raises(FloatingPointError, match="tiny: off computes something else"):
        operator.measure_operator("tiny", (1, 20, 1, 8), repeats=1)


def test_a_wrong_gradient_is_not_timed(monkeypatch):
    right = operator.ours("torch")

    def off(inputs):
        return right(inputs | {"key": inputs["key"].detach() + 0 * inputs["key"]})

    monkeypatch.setattr(operator, "rules_here", lambda: ({"torch": right, "off": off}, []))
    with pytest.raises(FloatingPointError, match="tiny: off computes something else"):
        operator.measure_operator("tiny", (1, 20, 1, 8), repeats=1)


def test_what_is_no_number_is_not_close():
    with pytest.raises(FloatingPointError, match="off by nan"):
        check_close("it", torch.tensor([float("nan")]), torch.zeros(1), tolerance=1.0)


def test_a_wrong_gradient_of_one_small_weight_stops_the_training_benchmark(monkeypatch):
    real = training._gradients

    def off(config, compute_dtype, form):
        found = real(config, compute_dtype, form)
        if form == "native":
            found["layers.0.mixer.A_log"] = found["layers.0.mixer.A_log"] * 1.01
        return found

    monkeypatch.setattr(training, "_gradients", off)
    with pytest.raises(FloatingPointError, match=r"gradient of layers\.0\.mixer\.A_log is off"):
        training._check(preset("nano"), "float32", "native")


def test_ratios_are_taken_round_by_round():
    fast, slow = Timing((1.0, 2.0, 4.0)), Timing((3.0, 6.0, 12.0))
    assert slow.over(fast) == Quartiles(3.0, 3.0, 3.0)
    assert fast.milliseconds == Quartiles(2000.0, 1500.0, 3000.0)
    assert Timing((2.0,)).milliseconds == Quartiles(2000.0, 2000.0, 2000.0)


def test_the_products_are_those_of_the_schedule():
    """The floor's work, counted by hand from the accounting of a token."""
    model = fresh_model(preset("nano"), seed=0)
    tokens = 700  # two slices of the head
    products = list(training.products_of(model, tokens))
    macs = sum(n * inputs * outputs for n, inputs, outputs in products)
    layer = model.layers[0]
    assert isinstance(layer.mixer, GatedDeltaNet)
    conv = layer.mixer.qkv_conv.numel()
    num_mixer = sum(occurrence.sublayer == "mixer" for occurrence in model.schedule)
    num_ffn = len(model.schedule) - num_mixer
    backbone = num_mixer * (layer.mixer.cost(0).projection_macs - conv)
    backbone += num_ffn * layer.ffn.cost(0).projection_macs
    head = model.config.d_model * model.config.vocab_size
    assert macs == tokens * (backbone + head)
    assert sum(outputs == model.config.vocab_size for _, _, outputs in products) == 2


def test_in_turn_means_in_turn():
    calls = []
    functions = {name: (lambda name=name: calls.append(name)) for name in "ab"}
    measure.interleaved(functions, warmup=1, repeats=2)
    assert calls == ["a", "b"] * 3


def test_core_is_timed_against_every_sequence_whole():
    done = mixerloop(
        *("bench", "core", "--bundle", str(BUNDLE), "--threads", "1", "--repeats", "2", "--json")
    )
    found = json.loads(done.stdout)
    assert found["decisions_differing"] == 0
    assert (found["examples"], found["tasks"], found["threads"]) == (24, 3, 1)
    low, high = found["plain_over_shared_quartiles"]
    assert 0 < low <= found["plain_over_shared"] <= high
    assert found["tokens_shared"] < found["tokens_plain"]
    assert found["work_limit"] > found["tokens_plain"] / found["tokens_shared"]
    assert {"commit", "machine", "form", "busy_cores"} <= set(found["provenance"])
    assert len(found["bundle"]) == len(found["tokenizer"]) == 64


def test_core_is_not_timed_where_a_decision_differs(monkeypatch):
    bundle = Bundle(BUNDLE)
    asking = [asked(bundle, task, limit=None) for task in bundle.tasks]
    tokenizer = core.tokenizer_of(asking, vocab_size=4096)
    model = fresh_model(preset("nano"), seed=0)
    real = core.PlainScorer.score

    def worst(self, questions):
        return [
            [scores._replace(losses=-scores.losses) for scores in of_question]
            for of_question in real(self, questions)
        ]

    monkeypatch.setattr(core.PlainScorer, "score", worst)
    with pytest.raises(FloatingPointError, match="of 24 decisions differ"):
        core.measure_core(
            "nano",
            model,
            asking,
            schedule=model.schedule,
            notation=model.config.schedule,
            encode=tokenizer.encode_all,
            context=1024,
            repeats=1,
        )
