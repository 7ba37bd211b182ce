"""Objectives: what a step minimises, in named parts."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mixerloop import config as configs
from mixerloop.config import run_config
from mixerloop.data.batches import Batch
from mixerloop.kinds import EveryPassOptions, ObjectiveConfig, pass_shares
from mixerloop.kinds.objectives import NextTokenOptions
from mixerloop.model.accounting import training_flops_per_token
from mixerloop.model.initialization import meta_model
from mixerloop.notation import notation, resolve
from mixerloop.schedule import first_passes
from mixerloop.training.depth import Depth
from mixerloop.training.loss import Loss
from mixerloop.training.metrics import Metrics, Timing, _charts
from mixerloop.training.objectives.every_pass import EveryPass
from mixerloop.training.objectives.next_token import NextToken
from mixerloop.training.objectives.objective import objective_kind
from mixerloop.training.opened import open_run
from mixerloop.training.parallel import ParallelLoss, Ranks
from mixerloop.training.step import Computation, accumulate
from small_model import SMALL, small_config
from stacks import large_model, stack_config
from training_sessions import contents, go, records, twelve_steps, with_train

SAME = 1e-10  # float64
LOOPS = (
    "A3 F A3 F A F",
    "mixer_loop(3)",
    "ffn_loop(3)",
    "block_loop(3)",
    "full_loop(3)",
    "A F 3x(2x(A F)) A F",
)


@pytest.fixture(scope="module")
def config(hops_data):
    return twelve_steps(hops_data, small_config(**SMALL, schedule="mixer_loop(3)"))


def objective(**options):
    return ObjectiveConfig.from_table({"kind": "every_pass", **options})


def model_of(tiny, schedule):
    layers = 4 if schedule.startswith("A F") else 3
    return large_model(tiny.changed(num_layers=layers, schedule=schedule)).double()


def windows(model, rows=3, seq=17):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.config.vocab_size, (rows, seq + 1), generator=generator)
    labels = tokens[:, 1:].clone()
    labels[:, :5] = -100
    return tokens[:, :-1], labels


# --- a loss after every pass ----------------------------------------------------------------------


def plain_losses(model, tokens, labels, readout):
    """The loss after each pass, each from a forward of its own."""
    num_passes = 1 + max(one.pass_index for one in model.schedule)
    losses = []
    for number in range(num_passes):
        if number == num_passes - 1:
            schedule = model.schedule
        elif readout == "coda":
            schedule = first_passes(model.schedule, number + 1)
        else:  # where the last pass of this number closes; a coda has layers of its own
            closes = "mixer" if model.config.schedule.startswith(("mixer_loop", "A3")) else "ffn"
            looped = {one.layer for one in model.schedule if one.pass_index}
            last = max(
                place
                for place, one in enumerate(model.schedule)
                if (one.pass_index, one.sublayer) == (number, closes) and one.layer in looped
            )
            schedule = model.schedule[: last + 1]
        residual = model.walk(model.embed(tokens), schedule).residual
        losses.append(model.summed_nll(residual.flatten(0, 1), labels.flatten()))
    return losses


@pytest.mark.parametrize("readout", ["early", "coda"])
@pytest.mark.parametrize("schedule", LOOPS)
def test_the_loss_of_every_pass_is_that_of_separate_forwards(tiny, schedule, readout):
    model = model_of(tiny, schedule)
    tokens, labels = windows(model)
    shares = (0.2, 0.5, 0.3)
    every = EveryPass(EveryPassOptions(weights=(2.0, 5.0, 3.0), readout=readout))
    total, parts, _ = Loss(model)(tokens, labels, objective=every)
    losses = plain_losses(model, tokens, labels, readout)
    wanted = torch.stack([share * loss for share, loss in zip(shares, losses, strict=True)]).sum()
    for number, loss in enumerate(losses):
        torch.testing.assert_close(parts[f"nll.pass{number}"], loss.detach(), rtol=SAME, atol=0)
    assert torch.equal(parts["nll"], parts["nll.pass2"])
    weights = list(model.parameters())
    mine, their = (torch.autograd.grad(one, weights) for one in (total, wanted))
    for one, other in zip(mine, their, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=SAME)


@pytest.mark.parametrize("readout", ["early", "coda"])
def test_with_all_weight_on_the_last_pass_it_is_next_token_to_the_bit(tmp_path, config, readout):
    every = objective(weights=[0, 0, 1], readout=readout)
    go(tmp_path / "next", config, until=4)
    go(tmp_path / "every", with_train(config, objective=every), until=4)
    (mine, _), (their, _) = (contents(tmp_path / name, 4) for name in ("next", "every"))
    assert mine.keys() == their.keys()
    assert all(torch.equal(tensor, their[name]) for name, tensor in mine.items())
    one, other = (records(tmp_path / name / "metrics.jsonl") for name in ("next", "every"))
    parts = ("loss.nll", "loss.nll.pass2")
    assert [{k: v for k, v in line.items() if k not in parts} for line in other] == one
    assert [line["loss.nll"] for line in other] == [line["loss"] for line in one]


def test_the_weights_of_passes():
    assert pass_shares("uniform", 4) == (0.25,) * 4
    assert pass_shares("later", 4) == (0.1, 0.2, 0.3, 0.4)
    assert pass_shares("geometric(0.3)", 3) == pytest.approx((0.3, 0.21, 0.49))
    assert pass_shares((1.0, 3.0), 2) == (0.25, 0.75)
    assert pass_shares("later", 1) == (1.0,)


@pytest.mark.parametrize("readout", ["early", "coda"])
@pytest.mark.parametrize("schedule", LOOPS)
def test_the_cost_of_readouts_is_counted(config, schedule, readout):
    layers = 4 if schedule.startswith("A F") else 3 if schedule.startswith("A3") else 2
    model = config.model.changed(num_layers=layers, schedule=schedule)
    given = objective(weights=[1, 0, 1], readout=readout)
    changed = with_train(replace(config, model=model), objective=given)
    (flops,) = open_run(changed).flops_of_depths
    meta = meta_model(model)
    head = 6 * model.vocab_size * model.d_model
    wanted = training_flops_per_token(meta, context=39) + head
    if readout == "coda":
        cut = first_passes(meta.schedule, 1)
        shared = sum(1 for one, other in zip(cut, meta.schedule, strict=False) if one == other)
        of_cut = replace(model, schedule=notation(cut))
        whole = training_flops_per_token(meta_model(of_cut), context=39)
        layers_of = dict.fromkeys(cut[:shared], 0)
        for one in layers_of:
            cost = meta.sublayer(one).cost(0)
            whole -= 6 * (cost.projection_macs + cost.recurrence_macs)
        wanted += whole - head
    assert flops == wanted


def test_a_drawn_depth_is_weighted_by_its_own_passes(tmp_path, config):
    changed = with_train(config, depth="uniform(1, 3)", objective=objective(weights="later"))
    go(tmp_path / "run", changed, until=8)
    for line in records(tmp_path / "run/metrics.jsonl"):
        parts = [line[f"loss.nll.pass{number}"] for number in range(line["passes"])]
        shares = pass_shares("later", line["passes"])
        assert line["loss"] == pytest.approx(float(np.dot(shares, parts)), rel=1e-6)
        assert line["loss.nll"] == parts[-1]
        assert f"loss.nll.pass{line['passes']}" not in line


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "evry_pass"}, "kind 'evry_pass' is unknown; did you mean every_pass"),
        ({"kind": "every_pass", "weight": 1}, "unknown key weight; did you mean weights"),
        ({"weights": "later"}, "next_token has no options; give train.objective.kind"),
        ({"kind": "every_pass", "weights": "early"}, "give uniform, later, geometric"),
        ({"kind": "every_pass", "weights": "geometric(2)"}, "give uniform, later, geometric"),
        ({"kind": "every_pass", "weights": [0, 0]}, "no share of a loss"),
        ({"kind": "every_pass", "readout": "late"}, "readout"),
        ({"kind": "every_pass", "weights": [1, 0]}, "the last pass needs a weight above 0"),
        ({"kind": "every_pass", "weights": "abc def"}, "give uniform, later, geometric"),
        ({"kind": ["every_pass"]}, "is unknown"),
    ],
)
def test_objectives_without_a_meaning_are_rejected(config, table, message):
    tables = {"model": SMALL, "data": {"path": "x"}, "train": {"steps": 1, "objective": table}}
    with pytest.raises(ValueError, match=rf"train\.objective.*{message}"):
        run_config(tables)


@pytest.mark.parametrize(
    ("train", "model", "message"),
    [
        ({"weights": [1, 1]}, {}, "2 weights, and the schedule makes 3 passes"),
        ({}, {"schedule": "A2 F2 A F"}, "neither as blocks nor as a stack"),
        ({}, {"schedule": "A2 F A4 F"}, "the layers make different numbers of passes"),
        ({"backprop": 1}, {"schedule": "full_loop(3)"}, "train.backprop cuts off gradients"),
    ],
)
def test_a_loss_of_passes_needs_a_regular_loop(config, train, model, message):
    keys = {"backprop": train.pop("backprop")} if "backprop" in train else {}
    changed = with_train(config, objective=objective(**train), **keys)
    with pytest.raises(ValueError, match=message):
        open_run(replace(changed, model=config.model.changed(**model)))


def test_the_config_keeps_its_objective(config):
    changed = with_train(config, objective=objective(weights="geometric(0.3)"))
    text = configs.dump(changed)
    assert '[train.objective]\nkind = "every_pass"\nweights = "geometric(0.3)"' in text
    tables = {"model": SMALL, "data": {"path": "x"}, "train": {"steps": 1}}
    given = tables | {"train": {"steps": 1, "objective": {"kind": "every_pass"}}}
    weights = {"train": {"objective": {"weights": "later"}}}
    train = run_config(given, weights).for_training()[1]
    assert train.objective == objective(weights="later")
    given = tables | {
        "train": {"steps": 1, "objective": {"kind": "every_pass", "weights": "later"}}
    }
    readout = {"train": {"objective": {"kind": "every_pass", "readout": "coda"}}}
    train = run_config(given, readout).for_training()[1]
    assert train.objective == objective(weights="later", readout="coda")
    kind = {"train": {"objective": {"kind": "next_token"}}}
    assert run_config(given, kind).train == run_config(tables).train


# --- parts ----------------------------------------------------------------------------------------


def test_the_parts_of_a_sparse_model_stand_apart(tmp_path, hops_data):
    sparse = twelve_steps(hops_data, stack_config("experts", "ffn_loop(2)"))
    go(tmp_path / "run", sparse, until=2)
    for line in records(tmp_path / "run/metrics.jsonl"):
        assert line["loss.nll"] + line["loss.balance"] + line["loss.router_z"] == pytest.approx(
            line["loss"], rel=1e-6
        )
    go(tmp_path / "again", with_train(sparse, micro_batch=1), until=2)
    pairs = zip(
        *(records(tmp_path / run / "metrics.jsonl") for run in ("run", "again")), strict=True
    )
    for line, other in pairs:
        assert line == pytest.approx(other, rel=1e-4)


def test_an_nll_that_is_not_the_loss_is_a_part(tmp_path, config):
    class Doubled(NextToken):
        def __call__(self, forward, tokens, labels):
            parts = super().__call__(forward, tokens, labels)
            return parts._replace(total=2 * parts.total)

    objective_kind("doubled", NextTokenOptions)(Doubled)
    changed = with_train(config, objective=ObjectiveConfig.from_table({"kind": "doubled"}))
    go(tmp_path / "run", changed, until=1)
    (line,) = records(tmp_path / "run/metrics.jsonl")
    assert line["loss"] == 2 * line["loss.nll"]


def test_charts_show_the_parts():
    metrics = Metrics(
        step=1,
        tokens=1,
        flops=1.0,
        loss=3.0,
        parts={"nll": 2.0, "balance": 1.0},
        grad_norm=1.0,
        learning_rate=1.0,
        passes=2,
        held_out_nll=None,
    )
    timing = Timing(step=1, seconds=1, tokens_per_second=1, gemm_share=1, seconds_left=0, threads=1)
    charts = _charts(metrics, timing)
    assert (charts["train/loss.nll"], charts["train/loss.balance"]) == (2.0, 1.0)
    assert charts["train/passes"] == 2
    assert metrics.nll == 2.0


# --- coupled losses -------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["mixer_loop(2)", "full_loop(3)"])
def test_a_balance_loss_is_of_the_whole_step(schedule):
    """In float64, also where windows have different numbers of scored tokens."""
    model = large_model(stack_config("experts", schedule)).double()
    generator = np.random.default_rng(0)
    tokens = generator.integers(12, size=(16, 20))
    labels = np.where(generator.random((16, 20)) < 0.4, -100, tokens)
    gradients = []
    for micro_batch in (16, 8, 4, 5):
        model.zero_grad()
        engine = ParallelLoss(Loss(model), ranks=Ranks(), parallel="ddp")
        computation = Computation(micro_batch=micro_batch, compute_dtype="float32", ranks=Ranks())
        found = accumulate(engine, Batch(0, tokens, labels), computation)
        gradients.append([one.grad for one in model.parameters()])
        assert found.parts["balance"][0] > 0
    for others in gradients[1:]:
        for one, other in zip(gradients[0], others, strict=True):
            if one is None:
                assert other is None
            else:
                torch.testing.assert_close(other, one, rtol=0, atol=SAME)


def test_a_schedule_cut_into_passes_needs_a_depth(config):
    """A depth that makes a single pass is next-token, whatever the weights."""
    model = large_model(config.model).double()
    tokens, labels = windows(model)
    once = Depth(resolve("2x(A F)", 2))
    every = EveryPass(EveryPassOptions(weights="later", readout="coda"))
    mine = Loss(model)(tokens, labels, objective=every, depth=once).total
    assert torch.equal(mine, Loss(model)(tokens, labels, depth=once).total)
