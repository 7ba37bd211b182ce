"""The shared-prefix engine against a whole forward per policy, and both against the definition."""

import dataclasses

import numpy as np
import pytest
import torch

from mixerloop.data.windows import DrawnWindows, spread_positions
from mixerloop.model.initialization import fresh_model
from mixerloop.ops import fla, gated_delta_rule
from mixerloop.ops.chunked import chunked_gated_delta_rule
from mixerloop.schedule import LOOPS, Occurrence, mixer_loop
from mixerloop.transport import measurement
from mixerloop.transport.executor import shared_residuals
from mixerloop.transport.figures import summarise, summarise_removals
from mixerloop.transport.geometry import itr, marginal_itr
from mixerloop.transport.noise import noise_floor
from mixerloop.transport.policies import (
    first_difference,
    intact,
    mixer_passes,
    restored,
    skipped,
    swapped,
)
from mixerloop.transport.removal import removal_costs, spearman
from mixerloop.transport.trajectories import measure

TOLERANCE = 1e-6
SCHEDULES = [*LOOPS, "A4 F A F A2 F", "A F 3x(2x(A F))"]


def windows_of(vocab, *, num=5, context=24, positions=4, seed=0):
    generator = np.random.default_rng(seed)
    return DrawnWindows(
        generator.integers(vocab, size=(num, context)), spread_positions(context, positions)
    )


def model_of(tiny, schedule, *, pass_residual="none", scale=4.0):
    """Weights large enough for passes to matter."""
    config = tiny.changed(schedule=schedule, pass_residual=pass_residual)
    model = fresh_model(config, seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embedding" not in name and "conv" not in name:
                parameter.mul_(scale)
            if "pass_residual" in name:
                parameter.normal_(0, 0.3)
    return model


def by_definition(model, windows, layer, num_intact):
    """Square roots of the probabilities under a policy, with the model's own arguments."""
    off = mixer_passes(model.schedule, layer)[num_intact:]
    with torch.no_grad():
        logits = model(
            torch.from_numpy(windows.tokens),
            positions=torch.from_numpy(windows.positions),
            context_off=off,
        )
    return logits.double().log_softmax(-1)


def values(estimates):
    """Of one estimate, or of one for each pass."""
    return [one.value for one in (estimates if isinstance(estimates, tuple) else [estimates])]


def measured_by_both(model, windows):
    """Of both engines; under each, a policy that restores all passes is the model bit for bit."""
    shared, plain = (measure(model, windows, engine=engine) for engine in ("shared", "plain"))
    assert shared.intact_max_abs_error == plain.intact_max_abs_error == 0.0
    for name in ("gram", "hellinger_squared", "target_gain", "top1_flips"):
        np.testing.assert_allclose(getattr(shared, name), getattr(plain, name), atol=TOLERANCE)
    assert (shared.layers, shared.num_passes) == (plain.layers, plain.num_passes)
    return shared, plain


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_shared_and_plain_agree_in_every_number(tiny, schedule):
    model = model_of(tiny, schedule)
    first, second = map(summarise, measured_by_both(model, windows_of(tiny.vocab_size, num=10)))
    for name in ("itr", "itr_by_depth", "marginal_itr", "later_share"):
        one, other = (values(getattr(summary, name)) for summary in (first, second))
        np.testing.assert_allclose(one, other, atol=TOLERANCE)


@pytest.mark.parametrize("unit", ["mixer", "ffn", "block", "stack"])
def test_a_learned_pass_residual_goes_along(tiny, unit):
    schedule = "full_loop(2)" if unit == "stack" else "block_loop(2)"
    model = model_of(tiny, schedule, pass_residual=unit)
    measured_by_both(model, windows_of(tiny.vocab_size))


@pytest.mark.parametrize("pass_residual", ["none", "mixer"])
def test_sums_are_those_of_the_definition(tiny, pass_residual):
    model = model_of(tiny, "mixer_loop(3)", pass_residual=pass_residual)
    windows = windows_of(tiny.vocab_size)
    found = measure(model, windows)
    targets = torch.from_numpy(windows.targets)[..., None]
    for layer in range(tiny.num_layers):
        log_p = torch.stack([by_definition(model, windows, layer, r) for r in range(4)])
        steps = (log_p / 2).exp().diff(dim=0)
        gram = torch.einsum("rwpv,swpv->wrs", steps, steps)
        np.testing.assert_allclose(found.gram[layer], gram, atol=TOLERANCE)
        half = steps.square().sum(-1).mean(-1).T / 2
        np.testing.assert_allclose(found.hellinger_squared[layer], half, atol=TOLERANCE)
        gains = torch.stack([one.gather(-1, targets)[..., 0] for one in log_p]).diff(dim=0)
        np.testing.assert_allclose(found.target_gain[layer], gains.mean(-1).T, atol=1e-5)
        flips = (log_p.argmax(-1)[1:] != log_p.argmax(-1)[:-1]).double().mean(-1).T
        np.testing.assert_array_equal(found.top1_flips[layer], flips)


@pytest.mark.parametrize("schedule", ["mixer_loop(3)", "full_loop(2)"])
def test_skipping_and_swapping_share_their_beginning_too(tiny, schedule):
    model = model_of(tiny, schedule)
    order = model.schedule
    policies = [
        *(skipped(order, one) for one in order),
        *(swapped(order, one) for one in order if one.sublayer == "ffn"),
        intact(order),
    ]
    windows = windows_of(tiny.vocab_size)
    tokens, positions = map(torch.from_numpy, (windows.tokens, windows.positions))
    with torch.no_grad():
        _, shared = shared_residuals(model, tokens, positions, policies, intact=intact(order))
        for policy, one in zip(policies, shared, strict=True):
            left = tuple(step.occurrence for step in policy if step.mark != "skipped")
            whole = model.walk(model.embed(tokens), left).residual
            torch.testing.assert_close(one, whole[:, positions], rtol=0, atol=1e-5)


def test_policies_are_marked_schedules():
    order = mixer_loop(2, 3)
    assert restored(order, layer=1, num_intact=3) == intact(order)
    policy = restored(order, layer=1, num_intact=1)
    off = [step.occurrence for step in policy if step.mark == "context_off"]
    assert off == [Occurrence(1, "mixer", 1), Occurrence(1, "mixer", 2)]
    assert first_difference(policy, intact(order)) == order.index(Occurrence(1, "mixer", 1))
    ffn = Occurrence(0, "ffn", 0)
    assert [step.occurrence for step in swapped(order, ffn)][2:4] == [ffn, order[2]]


def test_a_policy_that_would_touch_nothing_is_refused():
    order = mixer_loop(2, 3)
    with pytest.raises(ValueError, match=r"layer5\.ffn\.pass0 is not in the schedule"):
        skipped(order, Occurrence(5, "ffn", 0))
    with pytest.raises(ValueError, match="layer 1 makes 3 mixer passes, not 4"):
        restored(order, layer=1, num_intact=4)
    with pytest.raises(ValueError, match="does not follow the other sublayer"):
        swapped(order, Occurrence(0, "mixer", 1))


def test_windows_run_in_parts_are_the_same_windows(tiny):
    model = model_of(tiny, "mixer_loop(2)")
    windows = windows_of(tiny.vocab_size, num=7)
    whole = measure(model, windows)
    seen = []
    parts = measure(model, windows, windows_at_once=3, progress=lambda *args: seen.append(args))
    np.testing.assert_allclose(parts.gram, whole.gram, atol=TOLERANCE)
    assert seen == [(3, 7), (6, 7), (7, 7)]


def test_positions_are_spread_over_the_second_half_and_have_a_next_token():
    assert spread_positions(128, 16)[[0, -1]].tolist() == [64, 126]
    assert len(spread_positions(128, 16)) == 16
    assert spread_positions(8, 3).tolist() == [4, 5, 6]
    with pytest.raises(ValueError, match="has room for 3 positions, not 4"):
        spread_positions(8, 4)


def test_figures_have_intervals_over_windows_and_pairs_are_counted(tiny):
    model = model_of(tiny, "A4 F A F A2 F")
    found = measure(model, windows_of(tiny.vocab_size, num=12))
    result = summarise(found)
    assert result.pairs_total == 3 + 0 + 1
    assert [len(layer.marginal_itr) for layer in result.layers] == [4, 1, 2]
    assert result.itr.value == pytest.approx(float(itr(found.gram.mean(axis=(0, 1)))))
    layer = found.gram[0].mean(axis=0)
    np.testing.assert_allclose(values(result.layers[0].marginal_itr), marginal_itr(layer))
    for one in (result.itr.estimate, result.later_share.estimate, result.later_gain):
        assert one is not None
        assert one.lower < one.value < one.upper
        assert one.over == "windows"
    novel = sum(x > 0.5 for layer in result.layers for x in values(layer.marginal_itr)[1:])
    assert result.pairs_novel == novel
    with pytest.raises(ValueError, match="1 windows have no interval"):
        summarise(measure(model, windows_of(tiny.vocab_size, num=1)))


def test_the_random_controls_novelty_is_rounding(tiny):
    """The paper's control in small: in bfloat16 later passes look new, in float32 they do not."""
    config = dataclasses.replace(tiny, schedule="mixer_loop(4)")
    model = fresh_model(config, seed=0, rule="released")
    windows = windows_of(tiny.vocab_size, num=8)
    narrow, wide = (
        summarise(measure(model, windows, compute_dtype=dtype)) for dtype in ("bfloat16", "float32")
    )
    floor = noise_floor(model, windows, compute_dtype="bfloat16")
    narrow, wide = (values(summary.marginal_itr)[1] for summary in (narrow, wide))
    assert narrow > 0.1 > wide
    assert floor.marginal_itr[1] == pytest.approx(narrow - wide, rel=0.5)
    assert noise_floor(model, windows).marginal_itr[1] < 1e-4


def test_the_noise_floor_needs_no_float64_in_the_form_of_the_model(tiny, monkeypatch):
    def narrow(**inputs):
        assert inputs["value"].dtype == torch.float32
        return chunked_gated_delta_rule(**inputs)

    monkeypatch.setattr(fla, "is_installed", lambda: True)
    monkeypatch.setattr(fla, "is_interpreted", lambda: True)
    monkeypatch.setitem(gated_delta_rule._FORMS, "fla", narrow)
    windows = windows_of(tiny.vocab_size)
    config = tiny.changed(schedule="mixer_loop(2)")
    found, wanted = (
        noise_floor(fresh_model(config, seed=0, form=form), windows) for form in ("fla", "torch")
    )
    np.testing.assert_array_equal(found.hellinger_squared, wanted.hellinger_squared)


def test_nothing_is_measured_where_the_noise_floor_cannot_be(tiny, monkeypatch):
    def fails(*_, **options):
        raise ValueError("no wider type")

    monkeypatch.setattr(measurement, "noise_floor", fails)
    model, measured = model_of(tiny, "mixer_loop(2)"), []
    with pytest.raises(ValueError, match="no wider type"):
        measurement.transport_figures(
            model,
            windows_of(tiny.vocab_size),
            schedule=model.schedule,
            compute_dtype="float32",
            seed=0,
            removal=False,
            progress=lambda *counts: measured.append(counts),
        )
    assert measured == []


def test_a_schedule_without_a_mixer_is_refused(tiny):
    model = model_of(tiny, "no_loop")
    only_ffn = tuple(one for one in model.schedule if one.sublayer == "ffn")
    with pytest.raises(ValueError, match="runs no mixer"):
        measure(model, windows_of(tiny.vocab_size), schedule=only_ffn)


def test_costs_of_removal_are_differences_of_nll(tiny):
    model = model_of(tiny, "full_loop(2)")
    windows = windows_of(tiny.vocab_size, num=6)
    costs = removal_costs(model, windows)
    order = model.schedule
    assert len(costs["skip"].occurrences) == len(costs["ffn_off"].occurrences) == 6
    assert costs["swap_order"].occurrences == tuple(o for o in order if o.sublayer == "ffn")

    def nll(schedule):
        tokens, positions = map(torch.from_numpy, (windows.tokens, windows.positions))
        with torch.no_grad():
            log_p = model(tokens, positions=positions, schedule=schedule).double().log_softmax(-1)
        return -log_p.gather(-1, torch.from_numpy(windows.targets)[..., None])[..., 0].mean(1)

    for kind in ("skip", "ffn_off"):
        for row, left_out in enumerate(costs[kind].occurrences):
            without = tuple(one for one in order if one != left_out)
            expected = nll(without) - nll(order)
            np.testing.assert_allclose(costs[kind].nll[row], expected, atol=1e-5)
    ffn = costs["swap_order"].occurrences[2]
    at = order.index(ffn)
    other_order = (*order[: at - 1], ffn, order[at - 1], *order[at + 1 :])
    expected = nll(other_order) - nll(order)
    np.testing.assert_allclose(costs["swap_order"].nll[2], expected, atol=1e-5)


def test_removals_are_told_with_intervals_and_ranked_against_novelty(tiny):
    model = model_of(tiny, "full_loop(3)")
    windows = windows_of(tiny.vocab_size, num=10)
    found, costs = measure(model, windows), removal_costs(model, windows)
    result = summarise_removals(found, costs)
    places = [(one.layer, one.pass_number) for one in result.skip]
    assert places[:4] == [(0, 1), (1, 1), (2, 1), (0, 2)]
    for one in result.skip + result.ffn_off:
        assert one.delta_nll.lower < one.delta_nll.value < one.delta_nll.upper
    novelty = [x for layer in summarise(found).layers for x in values(layer.marginal_itr)[1:]]
    skips = sorted(result.skip, key=lambda one: (one.layer, one.pass_number))
    cost = [one.delta_nll.value for one in skips if one.pass_number > 1]
    expected = np.corrcoef(np.argsort(np.argsort(novelty)), np.argsort(np.argsort(cost)))[0, 1]
    correlation = result.spearman_marginal_itr_and_skip.estimate
    assert correlation is not None
    assert correlation.value == pytest.approx(expected)
    assert -1 <= correlation.lower < correlation.upper <= 1
    one_pass = model_of(tiny, "no_loop")
    none = summarise_removals(measure(one_pass, windows), removal_costs(one_pass, windows))
    assert none.spearman_marginal_itr_and_skip.value is None
    assert none.spearman_marginal_itr_and_skip.estimate is None


def test_ranks_share_ties():
    assert spearman(np.array([1.0, 2, 2, 3]), np.array([1.0, 2, 2, 3])) == pytest.approx(1)
    assert spearman(np.array([1.0, 2, 3]), np.array([3.0, 2, 1])) == pytest.approx(-1)
    assert np.isnan(spearman(np.array([1.0, 1, 1]), np.array([3.0, 2, 1])))
