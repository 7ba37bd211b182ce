"""Options that models of others need: norms, heads, scales, biases, and rules between passes."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from mixerloop.config import RunConfig
from mixerloop.interop.loading import open_subject
from mixerloop.model.accounting import account_model, account_schedule, training_flops_per_token
from mixerloop.model.checkpoint import load_weights, save_run, save_tensors
from mixerloop.model.decoding import advance, start
from mixerloop.model.initialization import fresh_model, meta_model
from mixerloop.schedule import full_loop, prelude_core_coda
from mixerloop.training.depth import Depth
from mixerloop.training.freezing import train_only, trained_weights
from small_model import small_config
from stacks import FFN, HEADS, SIZES, large_model

SAME = {"rtol": 0, "atol": 1e-10}  # float64; updates are added in another order
TOKENS = torch.arange(14).reshape(2, 7) % SIZES["vocab_size"]
NORMS = {
    "pre": lambda x, f, n1, n2: x + f(n1(x)),
    "post": lambda x, f, n1, n2: x + n2(f(x)),
    "sandwich": lambda x, f, n1, n2: x + n2(f(n1(x))),
    "after_add": lambda x, f, n1, n2: n2(x + f(n1(x))),
}


def config(schedule="no_loop", *, num_layers=2, **keys):
    sizes = SIZES | {"num_layers": num_layers}
    return small_config(
        **sizes, schedule=schedule, mixer="attention", attention=HEADS, **FFN | keys
    )


def model_of(*args, **keys):
    model = large_model(config(*args, **keys), form="torch", dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms and biases that differ from channel to channel
                parameter += torch.linspace(-0.5, 0.7, len(parameter), dtype=parameter.dtype)
    return model


def layer_by_hand(layer, residual, formula):
    for name in ("mixer", "ffn"):
        sublayer = getattr(layer, name)
        norm, post_norm = getattr(layer, f"{name}_norm"), getattr(layer, f"{name}_post_norm")
        residual = formula(residual, lambda x, f=sublayer: f(x).update, norm, post_norm)
    return residual


@pytest.mark.parametrize("placement", NORMS)
def test_norms_stand_where_the_placement_says(placement):
    model = model_of(norm_placement=placement)
    residual = model.embed(TOKENS)
    for layer in model.layers:
        residual = layer_by_hand(layer, residual, NORMS[placement])
    torch.testing.assert_close(model(TOKENS), model.read_out(residual), **SAME)


def test_an_untied_head_is_a_matrix_of_its_own():
    model = model_of(tied_head=False)
    residual = model.walk(model.embed(TOKENS), model.schedule).residual
    by_hand = F.linear(model.final_norm(residual), model.head_weight)
    assert torch.equal(model(TOKENS), by_hand)
    labels = torch.zeros(TOKENS.numel(), dtype=torch.int64)
    loss = F.cross_entropy(by_hand.flatten(0, 1), labels, reduction="sum")
    torch.testing.assert_close(model.summed_nll(residual.flatten(0, 1), labels), loss, **SAME)
    assert model_of().head is None


def test_the_embedding_is_scaled():
    scaled, plain = model_of(embedding_scale=5.0), model_of()
    assert torch.equal(scaled.embed(TOKENS), 5.0 * plain.embed(TOKENS))


@pytest.mark.parametrize("scale", [0.0, float("nan"), float("inf")])
def test_a_scale_that_is_no_positive_number_is_rejected(scale):
    with pytest.raises(ValueError, match=r"model\.embedding_scale must be above 0"):
        config(embedding_scale=scale)


def test_a_norm_between_passes_is_before_later_passes_only():
    model = model_of("full_loop(3)", pass_norm="stack")
    residual = model.embed(TOKENS)
    for pass_index in range(3):
        if pass_index > 0:
            residual = model.get_submodule("pass_norm.norm")(residual)
        residual = model.walk(residual, full_loop(2, 1), kept=(None,)).residual
    assert torch.equal(model(TOKENS), model.read_out(residual))


def test_a_shared_norm_between_passes_is_the_final_norm_and_is_saved_once(tmp_path):
    keys: dict[str, Any] = {"pass_norm": {"unit": "stack", "shared": True}}
    model = model_of("full_loop(2)", **keys)
    own = model_of("full_loop(2)", pass_norm="stack")
    assert set(own.state_dict()) - set(model.state_dict()) == {"pass_norm.norm.weight"}
    own.get_parameter("pass_norm.norm.weight").data.copy_(model.final_norm.weight)
    assert torch.equal(model(TOKENS), own(TOKENS))
    model = model.float()
    save_tensors(tmp_path / "model.safetensors", model.state_dict())
    again = meta_model(config("full_loop(2)", **keys), form="torch")
    load_weights(again, tmp_path / "model.safetensors")
    assert torch.equal(again(TOKENS), model(TOKENS))


def test_a_norm_before_a_coda_is_after_the_loop_whatever_its_number_of_passes():
    keys = {"pass_norm": {"unit": "coda", "before": "every", "shared": True}}
    model = model_of("A F 3x(A F A F) A F", num_layers=4, **keys)
    for num_passes in (1, 2, 5):
        schedule = prelude_core_coda(num_prelude=1, num_core=2, num_coda=1, num_passes=num_passes)
        residual = model.embed(TOKENS)
        for layer in [0, *[1, 2] * num_passes, 3]:
            if layer == 3:
                residual = model.final_norm(residual)
            residual = layer_by_hand(model.layers[layer], residual, NORMS["pre"])
        by_hand = model.read_out(residual)
        torch.testing.assert_close(model(TOKENS, schedule=schedule), by_hand, **SAME)


@pytest.mark.parametrize(
    ("schedule", "rule", "problem"),
    [
        ("mixer_loop(3)", {"pass_damping": "ffn"}, "repeats something else"),
        ("mixer_loop(3)", {"pass_damping": "block"}, "begins a pass before the last"),
        ("full_loop(2)", {"pass_norm": "coda"}, "there is no coda"),
        ("ffn_loop(3)", {"pass_damping": "block"}, "repeats something else"),
        ("block_loop(3)", {"pass_norm": "stack"}, "begins a pass before the last"),
        ("mixer_loop(3)", {"input_injection": "ffn"}, "repeats something else"),
        ("full_loop(2)", {"input_injection": "block"}, "after a pass of another layer"),
    ],
)
def test_a_unit_that_the_schedule_does_not_go_round_is_rejected(schedule, rule, problem):
    (name,) = rule
    with pytest.raises(ValueError, match=rf"model\.{name}\.unit = '\w+': .*{problem}"):
        model_of(schedule, **rule)


@pytest.mark.parametrize("schedule", ["full_loop(3)", "block_loop(3)", "mixer_loop(2)", "no_loop"])
@pytest.mark.parametrize("unit", ["mixer", "block", "stack"])
@pytest.mark.parametrize("name", ["pass_norm", "input_injection"])
def test_exactly_the_weights_that_are_used_are_trained(schedule, unit, name):
    try:
        model = model_of(schedule, **{name: unit})
    except ValueError:
        return  # rejected, as above
    train_only(model, trained_weights(model, [Depth(model.schedule)]))
    held = {key for key, weight in model.named_parameters() if not weight.requires_grad}
    model.requires_grad_(True)
    model(TOKENS).sum().backward()
    unused = {key for key, weight in model.named_parameters() if weight.grad is None}
    assert held == unused


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_damped_pass_keeps_a_share_of_its_change(share):
    model = model_of("full_loop(3)", pass_damping={"unit": "stack", "share": share})
    residual = model.embed(TOKENS)
    for pass_index in range(3):
        before = residual
        for layer in model.layers:
            residual = layer_by_hand(layer, residual, NORMS["pre"])
        if pass_index > 0:
            residual = before + share * (residual - before)
    torch.testing.assert_close(model(TOKENS), model.read_out(residual), **SAME)


def test_every_pass_reads_what_entered_the_loop():
    model = model_of("A F 3x(A F A F) A F", num_layers=4, input_injection="stack")
    first, *core, last = model.layers
    entered = layer_by_hand(first, model.embed(TOKENS), NORMS["pre"])
    state = torch.zeros_like(entered)
    for _ in range(3):
        state = model.get_submodule("input_injection.adapter")(torch.cat([state, entered], dim=-1))
        for layer in core:
            state = layer_by_hand(layer, state, NORMS["pre"])
    by_hand = model.read_out(layer_by_hand(last, state, NORMS["pre"]))
    torch.testing.assert_close(model(TOKENS), by_hand, **SAME)


RULES = {
    "norm": {"pass_norm": "stack"},
    "coda norm": {"pass_norm": {"unit": "coda", "before": "every", "shared": True}},
    "damping": {"pass_damping": "stack"},
    "injection": {"input_injection": "stack"},
    "all": {
        "pass_norm": {"unit": "coda", "before": "every", "shared": True},
        "pass_damping": "block",
        "input_injection": "stack",
    },
}


@pytest.mark.parametrize("rules", RULES)
def test_rules_act_alike_token_by_token_and_in_parts_of_a_schedule(rules):
    schedule = "A F 2x(A F A F) A F"
    model = model_of(
        schedule, num_layers=4, norm_placement="after_add", tied_head=False, **RULES[rules]
    )
    whole = model(TOKENS)
    state, steps = start(model, batch=2), []
    for column in TOKENS.split(1, dim=1):
        logits, state = advance(model, column, state)
        steps.append(logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, **SAME)
    for cut in range(1, len(model.schedule)):
        begun = model.walk(model.embed(TOKENS), model.schedule[:cut])
        ended = model.walk(begun.residual, model.schedule[cut:], kept=begun.kept)
        assert torch.equal(model.read_out(ended.residual), whole)


def test_a_subject_is_damped_round_what_its_schedule_repeats(tmp_path):
    model = fresh_model(config(num_layers=4), seed=0)
    save_run(tmp_path / "run", model, RunConfig(model=model.config), facts={})
    for schedule, unit in (("A F 2x(A F A F) A F", "stack"), ("A F 2x(A2 F) A F", "mixer")):
        subject = open_subject(tmp_path / "run", schedule=schedule, damping=0.25)
        rule = {"pass_damping": {"unit": unit, "share": 0.25}}
        damped = fresh_model(config(schedule, num_layers=4, **rule), seed=0)
        assert torch.equal(subject.model(TOKENS, schedule=subject.schedule), damped(TOKENS))
        assert subject.heading()["trained_schedule"] == "4x(A F)"
        assert subject.provenance().damping == 0.25
        assert subject.results is None
    with pytest.raises(ValueError, match="has no later pass to damp"):
        open_subject(tmp_path / "run", damping=0.5)
    with pytest.raises(ValueError, match=r"^damping: share must be finite, got nan"):
        open_subject(tmp_path / "run", schedule="full_loop(2)", damping=math.nan)


@pytest.mark.parametrize(
    ("rule", "schedules"),
    [
        ({"input_injection": "stack"}, ["A F 2x(A F A F) A F", "A F 3x(A F A F) A F"]),
        ({}, ["full_loop(2)", "A F 3x(A F A F) A F", "mixer_loop(2)"]),
    ],
)
def test_a_damping_that_keeps_all_changes_nothing_under_any_schedule(tmp_path, rule, schedules):
    trained = config("A F 2x(A F A F) A F", num_layers=4, **rule)
    save_run(tmp_path / "run", fresh_model(trained, seed=0), RunConfig(model=trained), facts={})
    for schedule in schedules:
        plain = open_subject(tmp_path / "run", schedule=schedule)
        damped = open_subject(tmp_path / "run", schedule=schedule, damping=1.0)
        logits = [one.model(TOKENS, schedule=one.schedule) for one in (plain, damped)]
        torch.testing.assert_close(*logits, rtol=0, atol=1e-5)


def test_the_adapter_of_every_pass_is_counted():
    loop, plain = "A F 3x(A F A F) A F", config("A F 3x(A F A F) A F", num_layers=4)
    injected = config(loop, num_layers=4, input_injection="stack")
    adapters = 3 * 2 * SIZES["d_model"] ** 2
    macs = [
        account_schedule(
            account_model(one), one.occurrences(), num_layers=4
        ).projection_macs_per_token
        for one in (plain, injected)
    ]
    assert macs[1] - macs[0] == adapters
    flops = [training_flops_per_token(meta_model(one), context=8) for one in (plain, injected)]
    assert flops[1] - flops[0] == 6 * adapters
