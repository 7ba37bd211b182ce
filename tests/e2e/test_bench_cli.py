"""`mixerloop bench`: it runs, it says what it should, and it checks before it times.

How fast anything is, is not tested: machines are shared. `make bench` measures.
"""

import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import needs
from command_line import mixerloop, refused
from mixerloop.benchmarking import core_speed as core
from mixerloop.benchmarking import measure, training_steps
from mixerloop.benchmarking import operator_speed as operator
from mixerloop.benchmarking import training_speed as training
from mixerloop.benchmarking.implementation import Implementation, with_autograd
from mixerloop.benchmarking.measure import Quartiles, Timing, check_close
from mixerloop.benchmarking.operator_speed import Case, OperatorBench
from mixerloop.benchmarking.own_forms import NATIVE_BFLOAT16, ours
from mixerloop.benchmarking.peers import fla, libraries, mlx, onnxruntime, transformers
from mixerloop.benchmarking.peers.registry import PEERS
from mixerloop.benchmarking.text import operator_text
from mixerloop.config import preset
from mixerloop.evaluation.core.asking import asked
from mixerloop.evaluation.core.bundle import Bundle
from mixerloop.model.initialization import fresh_model
from mixerloop.model.mixers.gated_delta_net import GatedDeltaNet
from mixerloop.ops import native_library

TINY = Case(shape=(1, 20, 1, 8))
BUNDLE = Path(__file__).parents[1] / "data" / "core_bundle"
NANO = {
    "prefill": ("--sizes", "nano", "--batches", "1", "2", "--length", "40", "--warmup", "1"),
    "decode": ("--size", "nano"),
    "transport": ("--size", "nano", "--windows", "1", "--context", "40"),
    "train": ("--size", "nano", "--batch", "2", "--length", "40", "--compute-dtype", "bfloat16"),
}


@pytest.mark.parametrize(
    "what",
    [
        "prefill",
        "transport",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("decode", "train")),
    ],
)
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
def test_one_token_beside_the_peers():
    done = mixerloop("bench", "operator", "--shapes", "token", "--repeats", "2", "--json")
    found = json.loads(done.stdout)
    (shape,) = found["shapes"]
    assert (shape["name"], shape["shape"], shape["decay"]) == ("token", [1, 1, 4, 64], "head")
    here = {peer.name for peer in PEERS if peer.is_installed()}
    assert here == set(shape["ratios_forward"]) == set(found["versions"])
    assert {peer.name for peer in PEERS} - here == set(shape["missing"])
    assert shape["ratio_forward_backward_to_best_peer"] is None
    assert shape["forward_backward"] == {}
    check_best_peer(shape, "forward")


@pytest.mark.slow
def test_a_decay_per_channel_beside_the_peers():
    done = mixerloop("bench", "operator", "--shapes", "channels", "--repeats", "1", "--json")
    (shape,) = json.loads(done.stdout)["shapes"]
    assert (shape["shape"], shape["decay"]) == ([4, 1024, 4, 64], "channel")
    here = {peer.name for peer in PEERS if peer.is_installed() and "channel" in peer.decays}
    assert here == set(shape["ratios_forward"])
    assert {"vllm", "mlx"} <= {*shape["left_out"], *shape["missing"]}
    assert set(shape["channel_over_scalar"]) == {"forward", "forward_backward"}
    assert all(low <= middle for middle, low, _ in shape["channel_over_scalar"].values())
    for direction in ("forward", "forward_backward"):
        check_best_peer(shape, direction)


def check_best_peer(shape, direction):
    """The ratio is that of the peer with the smallest one, with its quartiles beside it."""
    ratios, best = shape[f"ratios_{direction}"], shape["best_peer"][direction]
    ratio = shape[f"ratio_{direction}_to_best_peer"]
    quartiles = shape[f"ratio_{direction}_to_best_peer_quartiles"]
    if not ratios:
        assert best is ratio is quartiles is None
        return
    assert ratio == min(median for median, _, _ in ratios.values()) > 0
    assert ratios[best] == [ratio, *quartiles]


def test_mixers_are_timed_beside_gated_delta_net():
    arguments = ("--size", "nano", "--batch", "1", "--length", "24", "--compute-dtype", "float32")
    mixers = ("--loops", "no_loop", "--mixer", "mamba2,retention", "attention")
    done = mixerloop("bench", "train", *arguments, *mixers, "--repeats", "2", "--json")
    cases = json.loads(done.stdout)["mixers"]
    names = ["gated_delta_net", "mamba2", "retention", "attention"]
    assert [case["mixer"] for case in cases] == names
    for case in cases:
        median, low, high = case["over_gated_delta_net"]
        assert 0 < low <= median <= high
        assert 0.9 < case["parameters"] / cases[0]["parameters"] < 1.1
        has_peer = case["mixer"] == "attention" and needs.is_installed("transformers")
        assert (case["over_transformers"] is not None) == has_peer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("prefill", "--sizes", "15n"), "unknown preset '15n'; did you mean 15m?"),
        (("prefill", "--batches", "0"), "batches must be at least 1, got 0"),
        (("train", "--loops", "mixer_lop"), "did you mean"),
        (("train", "--repeats", "0"), "repeats must be at least 1"),
        (("train", "--mixer", "mamba3"), "unknown mixer 'mamba3'; did you mean mamba2?"),
        (("operator", "--shapes", "15n"), "unknown shape '15n'; did you mean 15m?"),
        (("operator", "--shapes"), "--shapes needs a value"),
        (("prefill", "--batches"), "--batches needs a value"),
        (("train", "--loops"), "--loops needs a value"),
        (("decode", "--schedule", "7x(A F)"), "the model has 6"),
        (("core", "--examples", "0"), "examples must be at least 1, got 0"),
        (("core", "--threads", "0"), "threads must be at least 1, got 0"),
        (("core", "--bundle", str(BUNDLE), "--tasks", "coulours"), "did you mean"),
        (("core", "--bundle", "nowhere"), "there is no such bundle"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message):
    assert message in refused("bench", *arguments)


def test_a_peer_that_is_missing_is_named(monkeypatch, tmp_path):
    for module in (fla, mlx, onnxruntime, transformers):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr(libraries, "FOLDER", tmp_path)
    monkeypatch.setattr(native_library, "library", lambda: None)
    case = operator.measure_operator("tiny", TINY, repeats=1)
    assert list(case.forward) == ["torch"]
    assert case.missing == ["native", *(peer.name for peer in PEERS)]
    assert case.best_peer == {"forward": None, "forward_backward": None}
    assert case.ratio_forward_to_best_peer is case.ratio_forward_backward_to_best_peer is None
    shown = operator_text(OperatorBench(shapes=(case,), versions={}, provenance={}))
    for name in case.missing:
        assert f"{name} is missing" in shown


def planted(monkeypatch, **rules):
    """Have the benchmark know only these peers, functions of torch tensors."""
    monkeypatch.setattr(
        operator,
        "PEERS",
        tuple(
            Implementation(
                name=name,
                is_installed=lambda: True,
                prepare=partial(with_autograd, rule),
                decays=("head", "channel"),
            )
            for name, rule in rules.items()
        ),
    )


def wrong_output(inputs):
    output, state = ours("torch")(inputs)
    return output + 1e-3, state


def wrong_state(inputs):
    output, state = ours("torch")(inputs)
    return output, state * 1.001


def wrong_gradient(inputs):
    return ours("torch")(inputs | {"key": inputs["key"].detach() + 0 * inputs["key"]})


@pytest.mark.parametrize(
    ("rule", "case"),
    [
        (wrong_output, TINY),
        (wrong_output, replace(TINY, decay="channel")),
        (wrong_state, replace(TINY, has_backward=False)),
        (wrong_gradient, TINY),
    ],
)
def test_what_computes_something_else_is_not_timed(monkeypatch, rule, case):
    planted(monkeypatch, off=rule)
    with pytest.raises(FloatingPointError, match="tiny: off computes something else"):
        operator.measure_operator("tiny", case, repeats=1)


def test_the_best_peer_is_the_one_that_is_hardest_to_beat(monkeypatch):
    def slow(inputs):
        time.sleep(0.05)
        return ours("torch")(inputs)

    planted(monkeypatch, slow=slow, quick=ours("torch"))
    case = operator.measure_operator("tiny", TINY, repeats=3)
    assert case.best_peer == {"forward": "quick", "forward_backward": "quick"}
    assert case.ratios_forward["slow"].median > case.ratios_forward["quick"].median
    assert case.ratio_forward_to_best_peer == case.ratios_forward["quick"].median
    assert case.channel_over_scalar is None


@needs.KERNEL.mark
def test_a_peer_in_bfloat16_is_compared_with_our_form_in_bfloat16(monkeypatch):
    peer = replace(NATIVE_BFLOAT16, name="narrow")
    monkeypatch.setattr(operator, "PEERS", (peer,))
    case = operator.measure_operator("tiny", TINY, repeats=1)
    assert case.dtypes["narrow"] == case.dtypes["native_bfloat16"] == "bfloat16"
    narrow, own = (case.forward[name].median for name in ("narrow", "native_bfloat16"))
    assert case.ratios_forward["narrow"].median == pytest.approx(narrow / own)


def test_what_is_no_number_is_not_close():
    with pytest.raises(FloatingPointError, match="off by nan"):
        check_close("it", torch.tensor([float("nan")]), torch.zeros(1), tolerance=1.0)


def test_a_wrong_gradient_of_one_small_weight_stops_the_training_benchmark(monkeypatch):
    real = training_steps._gradients

    def off(config, compute_dtype, form):
        found = real(config, compute_dtype, form)
        if form == "native":
            found["layers.0.mixer.A_log"] = found["layers.0.mixer.A_log"] * 1.01
        return found

    monkeypatch.setattr(training_steps, "_gradients", off)
    with pytest.raises(FloatingPointError, match=r"gradient of layers\.0\.mixer\.A_log is off"):
        training_steps.check_gradients(preset("nano"), "float32", "native")


def test_ratios_are_taken_round_by_round():
    fast, slow = Timing((1.0, 2.0, 4.0)), Timing((3.0, 6.0, 12.0))
    assert slow.over(fast) == Quartiles(3.0, 3.0, 3.0)
    assert fast.milliseconds == Quartiles(2000.0, 1500.0, 3000.0)
    assert Timing((2.0,)).milliseconds == Quartiles(2000.0, 2000.0, 2000.0)
    assert Timing((3.0, 6.0)).over(Timing((1.0, 2.0, 40.0))) == Quartiles(3.0, 3.0, 3.0)
    assert Timing((1.0, 2.0, 40.0)).over(Timing((2.0, 4.0))) == Quartiles(0.5, 0.5, 0.5)
    assert Timing((4.0, 8.0)).of_one(4) == Timing((1.0, 2.0))


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


def test_a_slow_function_is_in_the_first_rounds_only():
    calls = []
    functions = {"quick": lambda: None, "slow": lambda: time.sleep(0.05)}
    times = measure.interleaved(
        functions,
        warmup={"quick": 1, "slow": 0},
        repeats=5,
        most_seconds=0.05,
        rest=calls.append,
    )
    assert {name: len(timing.seconds) for name, timing in times.items()} == {"quick": 5, "slow": 2}
    assert calls == ["quick", *2 * ["quick", "slow"], *3 * ["quick"]]


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
