"""Depth: which schedule a step trains, what it costs, and how far its gradients flow."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from mixerloop.cli.overrides import Overrides, given
from mixerloop.config import run_config
from mixerloop.data.batches import Batch
from mixerloop.kinds import pass_weights
from mixerloop.model.accounting import training_flops_per_token
from mixerloop.model.initialization import meta_model
from mixerloop.notation import notation, resolve
from mixerloop.schedule import LOOPS, first_passes, no_loop, num_passes_of, with_passes
from mixerloop.training.depth import Depth, depths_of
from mixerloop.training.freezing import trained_weights
from mixerloop.training.loss import Loss
from mixerloop.training.objectives.next_token import NextToken
from mixerloop.training.opened import open_run
from mixerloop.training.parallel import ParallelLoss, Ranks
from mixerloop.training.run_setup import resumed_config
from mixerloop.training.step import Computation, accumulate
from small_model import SMALL, small_config
from stacks import large_model, stack_config
from training_sessions import (
    assert_same_run,
    contents,
    go,
    records,
    twelve_steps,
    weights,
    with_train,
)

SAME = 1e-10  # float64
TOKENS = 4 * 39  # of a step


@pytest.fixture(scope="module")
def config(hops_data):
    return twelve_steps(hops_data, small_config(**SMALL, schedule="full_loop(4)"))


def depths(config, **train):
    return depths_of(config.model, with_train(config, **train).train)


# --- the draws ------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", [name for name in LOOPS if name != "no_loop"])
def test_any_number_of_passes_of_a_loop_is_the_loop_made_with_it(loop):
    four = LOOPS[loop](3, 4)
    for number in (1, 2, 4, 7):
        assert with_passes(four, number) == LOOPS[loop](3, number)


def test_passes_of_other_schedules():
    coda = resolve("A F 3x(2x(A F)) A F", 4)
    assert notation(with_passes(coda, 5)) == "A F 5x(2x(A F)) A F"
    some = resolve("A F A3 F", 2)
    assert notation(with_passes(some, 6)) == "A F A6 F"
    for text, layers in (("A4 F A2 F", 2), ("A2 F2", 1), ("2x(A F)", 2)):
        schedule = resolve(text, layers)
        assert with_passes(schedule, 1) == first_passes(schedule, 1)
        with pytest.raises(ValueError, match=r"no meaning|repeats"):
            with_passes(schedule, 9)


def test_the_weights_of_rules():
    assert pass_weights("uniform(2, 4)") == {2: 1 / 3, 3: 1 / 3, 4: 1 / 3}
    geometric = pass_weights("geometric(0.3, 3)")
    assert geometric == pytest.approx({1: 0.3, 2: 0.21, 3: 0.49})
    drawn = pass_weights("poisson(4, 60)")
    rng = np.random.default_rng(0)  # Huginn: a log-normal rate, a Poisson number, and one
    rates = np.exp(rng.normal(math.log(4) - 0.125, 0.5, 400_000))
    passes = rng.poisson(rates) + 1
    for number in range(1, 15):
        share = float((passes == number).mean())
        assert drawn[number] == pytest.approx(share, abs=4 * math.sqrt(share / 400_000))
    assert sum(number * weight for number, weight in drawn.items()) == pytest.approx(5, abs=1e-6)
    assert max(pass_weights("poisson(4)")) == 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unifrom(1, 4)", "unknown depth 'unifrom'; did you mean uniform"),
        ("uniform(4)", r"give uniform\(least, most\)"),
        ("uniform(4, 1)", "no numbers of passes have weights"),
        ("uniform(0, 4)", "passes must be from 1 to 1,000"),
        ("uniform(1, 2.5)", "uniform"),
        ("geometric(1.5, 4)", "no numbers of passes have weights"),
        ("poisson(-1)", r"poisson\(mean, most\)"),
        ("uniform[1, 4]", "is not a name"),
        ("uniform(a, b)", "are not numbers"),
        ("uniform(1, 1e9)", "numbers must be at most 1,000"),
        ("poisson(inf)", "numbers must be at most 1,000"),
        ("uniform(1, nan)", "numbers must be at most 1,000"),
        ("fixed(3)", "fixed has no numbers"),
    ],
)
def test_a_depth_without_a_meaning_is_rejected(config, text, message):
    with pytest.raises(ValueError, match=rf"train\.depth: .*{message}"):
        with_train(config, depth=text)


def test_draws_are_a_function_of_seed_and_step(config):
    drawn = depths(config, depth="geometric(0.3, 4)", steps=20_000)
    steps = [drawn.at(step) for step in range(500)]
    again = depths(config, depth="geometric(0.3, 4)")
    assert [again.at(step) for step in reversed(range(500))] == steps[::-1]
    counts = drawn.counts(0, 20_000)
    assert counts.tolist() == np.bincount([drawn.at(step) for step in range(20_000)]).tolist()
    shares = np.array(drawn.weights)
    assert np.abs(counts / 20_000 - shares).max() < 4 * math.sqrt(0.25 / 20_000)
    other = depths(config, depth="geometric(0.3, 4)", seed=7)
    assert [other.at(step) for step in range(500)] != steps
    assert (drawn.counts(3, 77) + drawn.counts(77, 5000) == drawn.counts(3, 5000)).all()


def test_schedules_with_weights_are_drawn_by_their_weights(config):
    given = ((1.0, "2x(A F)"), (3.0, "2x(A2 F)"))
    drawn = depths(config, depth=given)
    assert [notation(depth.schedule) for depth in drawn.depths] == ["2x(A F)", "2x(A2 F)"]
    assert drawn.counts(0, 4000)[1] == pytest.approx(3000, abs=110)


# --- the budget -----------------------------------------------------------------------------------


def flops_of(config, schedule):
    return training_flops_per_token(
        meta_model(replace(config.model, schedule=notation(schedule))), context=39
    )


@pytest.mark.parametrize("per", ["batch", "sequence"])
def test_a_budget_in_flops_counts_what_is_drawn(config, tmp_path, per):
    model = meta_model(config.model)
    of = [flops_of(config, with_passes(model.schedule, n)) for n in (1, 2, 3, 4)]
    budget = 300.5 * TOKENS * of[1]
    drawn = with_train(config, depth="uniform(1, 4)", depth_per=per, steps=None, flops=budget)
    opened = open_run(drawn)
    steps = opened.budget.steps
    assert steps is not None
    counts = [opened.recipe.depths.counts(0, steps - late) for late in (0, 1)]
    spent = [float(np.dot(one, of)) * (39 if per == "sequence" else TOKENS) for one in counts]
    assert spent[1] < budget <= spent[0]
    assert opened.flops_of_steps(counts[0]) == spent[0]
    go(tmp_path / "run", with_train(drawn, flops=7.5 * TOKENS * of[2], evaluate_every=None))
    lines = records(tmp_path / "run/metrics.jsonl")
    assert lines[-1]["flops"] >= 7.5 * TOKENS * of[2] > lines[-2]["flops"]
    if per == "batch":
        differences = np.diff([0, *(line["flops"] for line in lines)]) / TOKENS
        assert differences.tolist() == [of[line["passes"] - 1] for line in lines]


@pytest.mark.parametrize("flops", [False, True])
def test_a_schedule_takes_the_place_of_another_at_its_share(config, tmp_path, flops):
    phases = ((0.0, "2x(A F)"), (0.5, "2x(A2 F)"), (0.75, "4x(2x(A F))"))
    of = [flops_of(config, resolve(text, 2)) for _, text in phases]
    budget = {"steps": None, "flops": 40.0 * TOKENS * of[0]} if flops else {"steps": 12}
    changed = with_train(config, schedule_at=phases, evaluate_every=1, **budget)
    outcome = go(tmp_path / "run", changed)
    lines = records(tmp_path / "run/metrics.jsonl")
    spent = [0, *(line["flops"] for line in lines)]
    whole = spent[-1] if flops else 12
    for number, line in enumerate(lines):
        share = (spent[number] / (40.0 * TOKENS * of[0])) if flops else number / whole
        phase = sum(share >= start - 1e-9 for start, _ in phases) - 1
        assert line["flops"] - spent[number] == TOKENS * of[phase]
        assert line["passes"] == line["held_out_passes"] == (1, 2, 4)[phase]
    assert outcome.finished
    if flops:
        assert lines[-1]["flops"] >= 40.0 * TOKENS * of[0] > lines[-2]["flops"]


def test_a_budget_in_seconds_switches_by_time_and_remembers_when(config, tmp_path):
    phases = ((0.0, "2x(A F)"), (0.5, "4x(2x(A F))"))
    timed = with_train(
        config, steps=None, seconds=1.5, schedule_at=phases, checkpoint_every=1000, warmup_steps=1
    )
    go(tmp_path / "run", timed, until=2)
    outcome = go(tmp_path / "run", timed)
    lines = records(tmp_path / "run/metrics.jsonl")
    passes = [line["passes"] for line in lines]
    assert passes == sorted(passes)
    assert set(passes) == {1, 4}
    position = (outcome.checkpoint / "position.json").read_text()
    assert f'"depth_starts": [\n    0,\n    {passes.index(4)}\n  ]' in position


# --- the gradient ---------------------------------------------------------------------------------


def batch_of(model, rows=4, seq=20):
    tokens = torch.randint(
        model.config.vocab_size, (rows, seq + 1), generator=torch.Generator().manual_seed(3)
    )
    return tokens[:, :-1], tokens[:, 1:]


def gradient(model, loss):
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return dict(zip((name for name, _ in model.named_parameters()), found, strict=True))


def assert_same_gradient(mine, their):
    assert mine.keys() == their.keys()
    for name, one in mine.items():
        if one is None:
            assert their[name] is None or not their[name].any(), name
        else:
            torch.testing.assert_close(one, their[name], rtol=0, atol=SAME, msg=name)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("schedule", "keys"),
    [
        ("4x(3x(A F))", {}),
        ("A F 4x(2x(A F)) A F", {}),
        ("A F 4x(2x(A F)) A F", {"input_injection": "stack"}),
        ("A F 4x(2x(A F)) A F", {"pass_residual": "stack", "tied_head": False}),
        ("4x(3x(A F))", {"pass_norm": "stack"}),
        ("4x(3x(A F))", {"input_injection": "stack", "tied_head": False}),
    ],
)
def test_truncation_is_the_full_gradient_of_a_walk_with_a_detach(tiny, schedule, keys, recompute):
    num_layers = 4 if schedule.startswith("A") else 3
    model = large_model(tiny.changed(num_layers=num_layers, schedule=schedule, **keys)).double()
    tokens, labels = batch_of(model)
    train = run_config(
        {
            "model": model.config.table(),
            "data": {"path": "x"},
            "train": {"steps": 1, "backprop": 2},
        }
    ).for_training()[1]
    (depth,) = depths_of(model.config, train).depths
    objective = Loss(model, recompute=recompute)
    mine = gradient(model, objective(tokens, labels, depth=depth).total)
    cut = next(n for n, one in enumerate(model.schedule) if one.pass_index == 2)
    before = model.walk(model.embed(tokens), model.schedule[:cut])
    after = model.walk(before.residual.detach(), model.schedule[cut:], kept=before.kept)
    full = model.summed_nll(after.residual.flatten(0, 1), labels.flatten())
    assert_same_gradient(mine, gradient(model, full))
    reached = {name for name, one in mine.items() if one is not None}
    assert reached == trained_weights(model, [depth]).ever
    (whole,) = depths_of(model.config, replace(train, backprop=4)).depths
    assert whole == Depth(model.schedule)


def test_statistics_are_of_the_parts_that_have_them(hops_data):
    """The last part of a step may run no layer with experts."""
    sparse = stack_config("experts", "full_loop(2)")
    config = twelve_steps(hops_data, sparse)
    gradients = []
    for micro_batch in (4, 1):
        model = large_model(sparse).double()
        tokens, labels = batch_of(model)
        drawn = depths(
            config, depth=((1.0, "A@0.0 A@1.0"), (1.0, "full_loop(2)")), depth_per="sequence"
        )
        step = next(s for s in range(50) if len(set(drawn.of_sequences(s))) == 2)
        computation = Computation(
            micro_batch=micro_batch, compute_dtype="float32", ranks=Ranks(), depths=drawn
        )
        engine = ParallelLoss(Loss(model), ranks=Ranks(), parallel="ddp")
        accumulate(engine, Batch(step, tokens.numpy(), labels.numpy()), computation)
        gradients.append({name: one.grad for name, one in model.named_parameters()})
    assert_same_gradient(*gradients)


def test_only_a_stack_can_be_cut_off(config):
    with pytest.raises(ValueError, match=r"train\.backprop: the schedule does not repeat a stack"):
        depths_of(
            replace(config.model, schedule="mixer_loop(4)"), replace(config.train, backprop=2)
        )


def test_a_cut_off_prefix_costs_its_forward_only(config):
    opened = open_run(with_train(config, backprop=1))
    of_pass = flops_of(config, no_loop(2))
    head = 6 * config.model.vocab_size * config.model.d_model
    body = of_pass - head
    assert opened.flops_of_depths == (pytest.approx(head + body + 3 * body / 3, rel=1e-6),)


def test_sequences_with_depths_of_their_own_add_up(config):
    """The gradient is that of each sequence alone, under its own schedule."""
    model = large_model(config.model).double()
    tokens, labels = batch_of(model, rows=4)
    drawn = depths(config, depth="uniform(1, 4)", depth_per="sequence")
    engine = ParallelLoss(Loss(model), ranks=Ranks(), parallel="ddp")
    computation = Computation(
        micro_batch=2, compute_dtype="float32", ranks=Ranks(), depths=drawn, objective=NextToken()
    )
    step = next(step for step in range(50) if len(set(drawn.of_sequences(step))) == 3)
    found = accumulate(engine, Batch(step, tokens.numpy(), labels.numpy()), computation)
    mine = {name: one.grad for name, one in model.named_parameters()}
    alone = torch.stack(
        [
            model.summed_nll(
                model.walk(model.embed(tokens[[row]]), drawn.depths[number].schedule).residual[0],
                labels[row],
            )
            for row, number in enumerate(drawn.of_sequences(step))
        ]
    ).sum()
    assert found.summed == pytest.approx(alone.item(), rel=1e-12)
    assert_same_gradient(mine, gradient(model, alone / labels.numel()))


# --- the run --------------------------------------------------------------------------------------

DRAWN = {
    "uniform": {"depth": "uniform(1, 4)"},
    "sequence": {"depth": "uniform(1, 6)", "depth_per": "sequence", "micro_batch": 3},
    "truncated": {"depth": "poisson(3)", "backprop": 2},
    "mixture": {"depth": ((1.0, "A@0.0 F@0.0"), (2.0, "2x(A2 F)"))},
    "onset": {"schedule_at": ((0.0, "2x(A F)"), (0.4, "4x(2x(A F))"))},
}


@pytest.mark.parametrize("how", DRAWN)
def test_stopped_anywhere_and_resumed_it_is_the_same_run_to_the_bit(tmp_path, config, how):
    if how == "mixture":  # the first schedule leaves the second layer out
        config = replace(config, model=replace(config.model, schedule="2x(A2 F)"))
    changed = with_train(config, **DRAWN[how])
    go(tmp_path / "whole", changed)
    for stop in (1, 3, 8, 12):
        go(tmp_path / "parts", changed, until=stop)
    assert_same_run(contents(tmp_path / "whole"), contents(tmp_path / "parts"))
    plain = go(tmp_path / "plain", config).checkpoint
    assert plain.name == "step-12"
    assert any(
        not torch.equal(tensor, weights(tmp_path / "whole", 12)[name])
        for name, tensor in weights(tmp_path / "plain", 12).items()
    )


def test_fixed_is_the_run_without_a_depth(tmp_path, config):
    go(tmp_path / "a", config, until=2)
    go(tmp_path / "b", with_train(config, depth="uniform(4, 4)"), until=2)
    mine, their = (contents(tmp_path / name, 2) for name in "ab")
    assert_same_run(mine, their)


def test_a_resumed_run_keeps_its_depth(tmp_path, config):
    go(tmp_path / "run", with_train(config, depth="uniform(1, 4)"), until=1)
    resumed = resumed_config(tmp_path / "run", config_file=None, overrides={})
    assert resumed.train is not None
    assert resumed.train.depth == "uniform(1, 4)"
    with pytest.raises(ValueError, match=r"train\.depth was uniform\(1, 4\) and would be fixed"):
        resumed_config(tmp_path / "run", config_file=None, overrides={"train": {"depth": "fixed"}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": "uniform(1, 9)", "schedule": "A4 F A2 F"}, r"train\.depth: .* no meaning"),
        ({"depth": "uniform(1, 9)", "pass_residual": "stack"}, "learned for 4 passes"),
        ({"schedule_at": ((0.0, "2x(A F)"),)}, "must be the model's"),
        ({"schedule_at": ((0.1, "4x(2x(A F))"),)}, "must grow from 0"),
        ({"schedule_at": ((0.0, "2x(A F)"), (0.5, "A F")), "schedule": "A F"}, "has 1 layers"),
        ({"depth_per": "sequence"}, "needs a train.depth that is drawn"),
        ({"depth": ((0.0, "2x(A F)"),)}, "weights must be above 0"),
        ({"depth": "uniform(1, 2)", "schedule_at": ((0.0, "2x(A F)"),)}, "give one"),
        ({"backprop": 0}, r"train\.backprop must be at least 1"),
        ({"depth": ((1e308, "2x(A F)"), (1e308, "2x(A2 F)"))}, "sum of the weights is too large"),
        ({"schedule_at": ((0.0, "2x(A F)"), (0.99, "full_loop(4)"))}, "gets none of the 12 steps"),
        (
            {"depth": "uniform(1, 4)", "depth_per": "sequence", "parallel": "fsdp"},
            r"train\.parallel = fsdp .* train\.depth_per = sequence",
        ),
        ({"warmup": 0.1, "steps": None, "seconds": 2.0}, "give warmup_steps"),
        (
            {"depth": ((1.0, "A@0.0 F@0.0"), (1.0, "2x(A2 F)")), "schedule": "2x(A2 F)"}
            | {"freeze": ("layers.0.*", "embedding*", "final_norm*")},
            r"no parameter is left to train under A F",
        ),
    ],
)
def test_depths_that_do_not_fit_are_rejected_before_a_run_begins(config, changes, message):
    of_model = {key: changes[key] for key in changes if key in ("schedule", "pass_residual")}
    train = {key: value for key, value in changes.items() if key not in of_model}
    with pytest.raises(ValueError, match=message):
        open_run(with_train(replace(config, model=config.model.changed(**of_model)), **train))


def test_depths_are_read_from_toml(config):
    table = {
        "model": config.model.table(),
        "data": {"path": "data"},
        "train": {"steps": 2, "depth": [[1, "2x(A F)"], [3, "2x(A4 F)"]], "backprop": 2},
    }
    assert run_config(table).for_training()[1].depth == ((1, "2x(A F)"), (3, "2x(A4 F)"))
    assert num_passes_of(resolve("2x(A4 F)", 2)) == 4


def test_schedules_in_turn_are_pairs_on_the_command_line():
    words = ("0", "no_loop", "0.5", "2x(A4 F)")
    tables = given(Overrides(train__schedule_at=words))  # pyright: ignore[reportCallIssue]
    assert tables == {"train": {"schedule_at": [[0.0, "no_loop"], [0.5, "2x(A4 F)"]]}}
    for wrong in (words[:3], ("a", "no_loop")):
        with pytest.raises(ValueError, match=r"--train\.schedule-at: give pairs of a number"):
            given(Overrides(train__schedule_at=wrong))  # pyright: ignore[reportCallIssue]
