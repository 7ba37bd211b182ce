"""Kinds of a user's own: one file each in tests/toys, and the import that registers it."""

import dataclasses
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mixerloop import config as configs
from mixerloop.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from mixerloop.data.corpora import prepare_hops
from mixerloop.data.windows import DrawnWindows, spread_positions
from mixerloop.description import describe
from mixerloop.evaluation.looped_scorer import LoopedScorer
from mixerloop.evaluation.scorer import Candidate
from mixerloop.interop.folders import export
from mixerloop.kinds import KINDS, Kind, register
from mixerloop.model.accounting import account_model, account_schedule, training_flops_per_token
from mixerloop.model.checkpoint import load_model
from mixerloop.model.decoding import advance, prefill, side_by_side, start
from mixerloop.model.ffns.swiglu import SwiGLU
from mixerloop.model.initialization import fresh_model, meta_model
from mixerloop.model.sublayer import Cost, FFNModule, Output, ffn_kind
from mixerloop.training.checkpoints import optimizer_tensors, restore, save
from mixerloop.training.loss import SummedLoss
from mixerloop.training.optimizer import make_optimizer
from mixerloop.training.parallel import ParallelLoss, Ranks
from mixerloop.training.position import Position
from mixerloop.training.run_setup import begin
from mixerloop.training.trainer import Trainer
from mixerloop.transport.trajectories import measure
from small_model import SMALL, small_config
from toys import (  # noqa: F401
    rereading,
    running_mean,
    token_shift,
    toy_attention,
    two_experts,
)

TOYS = {
    "mixer": {"mixer": "running_mean"},
    "growing": {"mixer": "toy_attention"},
    "ffn": {"ffn": "two_experts"},
    "stateful ffn": {"ffn": "token_shift"},
    "rule": {"rereading": "mixer"},
    "hybrid": {"mixer": ["gated_delta_net", "toy_attention"], "d_attention": 4},
    "everything": {
        "mixer": ["running_mean", "toy_attention"],
        "ffn": "two_experts",
        "rereading": {"unit": "stack", "penalty": 0.1},
        "pass_residual": "stack",
        "schedule": "full_loop(3)",
    },
}


@pytest.fixture(params=TOYS)
def toy(request) -> ModelConfig:
    base = small_config(**SMALL, schedule="mixer_loop(3)")
    return base.changed(**TOYS[request.param])


def large(model):
    """Weights large enough that a bug shows."""
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.data.mul_(8)
    return model


@pytest.fixture
def run_config(toy, tmp_path) -> RunConfig:
    prepare_hops(tmp_path / "data")
    return RunConfig(
        model=toy,
        data=DataConfig(path=str(tmp_path / "data")),
        train=TrainConfig(
            steps=4,
            global_batch=4,
            micro_batch=2,
            warmup_steps=1,
            peak_lr=0.01,
            compute_dtype="float32",
            checkpoint_every=2,
            keep_last=9,
            evaluate_windows=2,
            tensorboard=False,
        ),
    )


def test_a_config_with_toys_is_written_and_read(toy):
    written = configs.dump(RunConfig(model=toy))
    again = configs.run_config(configs.tomllib.loads(written)).model
    assert configs.dump(RunConfig(model=again)) == written
    assert again.layer_kinds() == toy.layer_kinds()


def test_every_parameter_and_buffer_has_an_initial_value(toy):
    first, second = (fresh_model(toy, seed=3) for _ in range(2))
    tensors = {**dict(first.named_parameters()), **dict(first.named_buffers())}
    for name, tensor in tensors.items():
        assert tensor.isfinite().all(), name
        assert tensor.abs().max() <= 1e4, name
    others = {**dict(second.named_parameters()), **dict(second.named_buffers())}
    assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())
    for name, tensor in tensors.items():
        if name.endswith(".bias"):
            assert not tensor.any(), name
        if name.endswith("mixer.norm.weight"):
            assert (tensor == 1).all(), name


def test_an_interrupted_run_ends_in_the_same_bits(run_config, tmp_path):
    for name, stops in (("whole", [None]), ("parts", [1, 2, 3, None])):
        config = begin(tmp_path / name, run_config, ranks=Ranks())
        for until in stops:
            Trainer(tmp_path / name, config, ranks=Ranks()).train(until=until)
    for file in ("model.safetensors", "optimizer/optimizer.safetensors"):
        whole, parts = (
            load_file(tmp_path / name / "checkpoints" / "step-4" / file)
            for name in ("whole", "parts")
        )
        assert whole.keys() == parts.keys()
        assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())
    fresh = load_file(tmp_path / "whole" / "checkpoints" / "step-0" / "model.safetensors")
    trained = load_file(tmp_path / "whole" / "checkpoints" / "step-4" / "model.safetensors")
    assert any(not torch.equal(tensor, trained[name]) for name, tensor in fresh.items())
    loaded, _ = load_model(tmp_path / "whole")
    assert all(buffer.isfinite().all() and not buffer.is_meta for buffer in loaded.buffers())


def test_decoding_gives_the_logits_of_the_parallel_forward(toy):
    model = large(fresh_model(toy, seed=0))
    tokens = torch.randint(toy.vocab_size, (2, 11))
    whole = model(tokens)
    logits, state = prefill(model, tokens[:, :5], start(model, batch=2), chunk_tokens=2)
    torch.testing.assert_close(logits, whole[:, 4], rtol=0, atol=1e-4)
    for at in range(5, 11):
        logits, state = advance(model, tokens[:, at : at + 1], state)
        torch.testing.assert_close(logits[:, 0], whole[:, at], rtol=0, atol=1e-4)
    forked, _ = advance(model, tokens[:, :1].repeat_interleave(3, 0), state.fork(3))
    alone, _ = advance(model, tokens[:, :1], state)
    torch.testing.assert_close(forked[::3], alone, rtol=0, atol=1e-4)


def test_scores_do_not_depend_on_sharing(toy):
    model = large(fresh_model(toy, seed=0))
    generator = np.random.default_rng(0)
    questions = []
    for length in (30, 40, 300, 400, 700):  # too unequal to run as one batch
        shared = generator.integers(toy.vocab_size, size=length)
        ends = [generator.integers(toy.vocab_size, size=size) for size in (4, 6)]
        questions.append([Candidate(np.append(shared, end), length) for end in ends])
    scorers = [LoopedScorer(model, share_prefixes=share) for share in (True, False)]
    with_sharing, plain = (scorer.score(questions) for scorer in scorers)
    assert scorers[0].tokens_processed < 0.7 * scorers[1].tokens_processed
    for question, others in zip(with_sharing, plain, strict=True):
        for one, other in zip(question, others, strict=True):
            np.testing.assert_allclose(one.losses, other.losses, atol=1e-4)


def test_transport_restores_the_model_bit_for_bit(toy):
    model = large(fresh_model(toy, seed=0))
    tokens = np.random.default_rng(0).integers(toy.vocab_size, size=(4, 24))
    trajectories = measure(model, DrawnWindows(tokens, spread_positions(24, 4)))
    assert trajectories.intact_max_abs_error == 0.0
    plain = measure(model, DrawnWindows(tokens, spread_positions(24, 4)), engine="plain")
    np.testing.assert_allclose(trajectories.gram, plain.gram, atol=1e-5)
    assert trajectories.hellinger_squared.max() > 1e-6


def test_costs_are_counted_layer_by_layer(toy):
    account = account_model(toy, prefix_tokens=99)
    model = fresh_model(toy, seed=0)
    of_schedule = account_schedule(account, toy.occurrences(), num_layers=toy.num_layers)
    wanted = sum(model.sublayer(one).cost(99).state_bytes for one in toy.occurrences())
    assert of_schedule.state_bytes_per_sequence == wanted
    _, state = prefill(model, torch.zeros(1, 99, dtype=torch.int64), start(model))
    assert state.nbytes() == wanted
    macs = sum(
        sum(model.sublayer(one).cost(place).recurrence_macs for place in range(50)) / 50
        + model.sublayer(one).cost(0).projection_macs
        for one in toy.occurrences()
    )
    head = toy.vocab_size * toy.d_model
    assert training_flops_per_token(model, context=50) == round(6 * (head + macs))


def test_a_toy_is_described_and_its_forms_are_named(toy, tmp_path):
    (tmp_path / "toy.toml").write_text(configs.dump(RunConfig(model=toy)))
    described = describe(tmp_path / "toy.toml")
    model = fresh_model(toy, seed=0)
    assert described.model.parameters == sum(one.numel() for one in model.parameters())
    kinds = {kind for pair in toy.layer_kinds() for kind in pair}
    toys = kinds - {"gated_delta_net", "swiglu"}
    assert {name: form for name, form in model.forms().items() if name in toys} == dict.fromkeys(
        toys, "torch"
    )


def test_a_toy_is_not_exported_by_halves(toy, tmp_path):
    with pytest.raises(ValueError, match=r"(kind|pass rule) \w+ ha(s|ve) no released layout"):
        export(fresh_model(toy, seed=0), tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_auxiliary_losses_count_once_for_each_scored_token():
    config = small_config(**SMALL, schedule="no_loop").changed(ffn="two_experts", balance=0.5)
    model = large(fresh_model(config, seed=0))
    loss = SummedLoss(model)
    tokens = torch.randint(12, (3, 10))
    labels = tokens.clone()
    labels[:, :4] = -100
    nll = loss.eval()(tokens, labels)
    auxiliary = model.walk(model.embed(tokens), model.schedule).losses["balance"]
    torch.testing.assert_close(loss.train()(tokens, labels), nll + 18 * auxiliary)
    assert auxiliary > 0.01
    loss.train()(tokens, labels).backward()
    assert model.get_parameter("layers.0.ffn.router.weight").grad is not None
    assert model.get_parameter("layers.0.ffn.experts.1.0.weight").grad is None


def test_a_weight_whose_first_gradient_comes_late_keeps_its_own_count(tiny, tmp_path, monkeypatch):
    """AdamW corrects its means by the number of updates of each weight."""
    config = RunConfig(model=tiny)
    monkeypatch.setattr(SwiGLU, "may_skip_weights", True)
    model = fresh_model(tiny, seed=0)
    late = model.get_parameter("layers.1.ffn.down_proj.weight")
    never = model.get_parameter("layers.2.ffn.down_proj.weight")
    optimizer = make_optimizer(model, peak_lr=0.1, weight_decay=0.1)
    for step in range(3):
        for parameter in model.parameters():
            skipped = parameter is never or (parameter is late and step < 2)
            parameter.grad = None if skipped else torch.ones_like(parameter)
        optimizer.step()
    position = Position(step=3, seconds=0.0, total_steps=3, seed=0, finished=True)
    folder = save(
        tmp_path / "run",
        model,
        optimizer,
        position,
        config=config,
        files={},
        parent=None,
        ranks=Ranks(),
    )
    again, _ = load_model(folder)
    other = make_optimizer(again, peak_lr=0.1, weight_decay=0.1)
    restore(folder, again, other)
    before, after = (optimizer_tensors(*pair, 3) for pair in ((model, optimizer), (again, other)))
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert float(after["step.layers.1.ffn.down_proj.weight"]) == 1
    assert "exp_avg.layers.2.ffn.down_proj.weight" not in after
    monkeypatch.setattr(SwiGLU, "may_skip_weights", False)
    with pytest.raises(ValueError, match=r"no moments of layers\.2\.ffn\.down_proj\.weight"):
        restore(folder, again, other)


def test_weights_without_gradients_are_not_sharded():
    """FSDP2 would average the gradients of different experts."""
    model = fresh_model(small_config(**SMALL).changed(ffn="two_experts"), seed=0)
    with pytest.raises(ValueError, match="fsdp: a sublayer of this model may leave weights"):
        ParallelLoss(SummedLoss(model), ranks=Ranks(num_ranks=2), parallel="fsdp")


def test_growing_states_of_unequal_length_are_not_joined():
    model = fresh_model(small_config(**SMALL).changed(mixer="toy_attention"), seed=0)
    tokens = torch.zeros(1, 5, dtype=torch.int64)
    states = [prefill(model, tokens[:, :length], start(model))[1] for length in (3, 5)]
    with pytest.raises(ValueError, match="only after equal numbers of tokens"):
        side_by_side(states)


class Forgetful(SwiGLU):
    def forward(self, x, state=None):
        return super().forward(torch.nn.functional.dropout(x, 0.5), state)


def test_recomputing_draws_the_same_random_numbers(tiny):
    ffn_kind("forgetful", KINDS["swiglu"].options)(Forgetful)
    config = tiny.changed(ffn="forgetful", d_ffn=28)
    gradients = []
    for recompute in (False, True):
        model = fresh_model(config, seed=0)
        torch.manual_seed(3)
        SummedLoss(model, recompute=recompute)(*[torch.arange(20)[None] % 50] * 2).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for plain, again in zip(*gradients, strict=True):
        assert plain is not None
        assert again is not None
        assert torch.equal(plain, again)


def test_a_kind_may_change_in_a_config_with_options_outside_tables():
    table = dict(SMALL)
    changed = configs.run_config({"model": table}, {"model": {"mixer": "running_mean"}}).model
    assert changed.mixer == ("running_mean",)
    assert changed.options["swiglu"].d_ffn == SMALL["d_ffn"]
    wider = configs.run_config({"model": table}, {"model": {"swiglu": {"d_ffn": 32}}}).model
    assert wider.options["swiglu"].d_ffn == 32
    rule = {"rereading": {"unit": "mixer", "penalty": 0.5}}
    other = configs.run_config({"model": table | rule}, {"model": {"rereading": "ffn"}}).model
    assert other.options["rereading"] == rereading.RereadingOptions(unit="ffn", penalty=0.5)
    none = configs.run_config({"model": table | rule}, {"model": {"rereading": "none"}}).model
    assert not none.pass_rules()


def test_old_and_new_names_of_a_form_are_not_given_together():
    train = {"steps": 3, "implementation": "chunked"}
    model = {"preset": "nano"}
    with pytest.raises(ValueError, match=r"old name of train\.form; give one of them"):
        configs.run_config({"model": model, "train": train | {"form": "native"}})
    with pytest.raises(ValueError, match=r"train\.form = \['x'\]"):
        configs.run_config({"model": model, "train": train | {"implementation": ["x"]}})
    config = configs.run_config({"model": model, "train": {"steps": 3}}, {"train": train})
    assert config.train is not None
    assert config.train.form == "torch"


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoOptions:
    pass


class Careless(FFNModule):
    def __init__(self, options, place):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.empty(place.d_model))

    def forward(self, x, state=None):
        return Output(x * self.scale)

    def cost(self, prefix_tokens):
        return Cost(projection_macs=0)


def test_a_parameter_that_nobody_initialises_is_an_error(tiny):
    ffn_kind("careless", NoOptions)(Careless)
    with pytest.raises(ValueError, match=r"layers\.0\.ffn\.scale has no initial value; give Care"):
        fresh_model(tiny.changed(ffn="careless"), seed=0)


def test_a_model_with_a_careless_projection_is_not_shrunk(tiny):
    config = tiny.changed(ffn="two_experts", schedule="ffn_loop")
    with pytest.raises(ValueError, match="shrinks down_proj, and a two_experts has none"):
        fresh_model(config, seed=0, rule="released")


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"mixer": "runing_mean"}, "unknown mixer 'runing_mean'; did you mean running_mean?"),
        ({"mixer": "swiglu"}, "unknown mixer 'swiglu'"),
        ({"mixer": ["running_mean", "toy_attention"]}, "2 kinds cannot take turns over 3 layers"),
        ({"mixer": []}, "0 kinds cannot take turns over 3 layers"),
        ({"running_mean": {"d_mean": 3}}, "model.running_mean: no layer is of this kind"),
        ({"mixer": "running_mean", "running_mean": {"d_men": 3}}, "did you mean d_mean?"),
        ({"mixer": "running_mean", "num_heads": 3}, "unknown key num_heads"),
        ({"rereading": {"penalty": 1.0}}, "model.rereading.unit is missing"),
        ({"mixer": "running_mean", "d_mean": "wide"}, "model.running_mean.d_mean = 'wide'"),
        ({"rereading": "mixr"}, "model.rereading.unit 'mixr' is unknown; did you mean"),
        ({"swiglu": 3}, "model.swiglu must be a table, got 3"),
    ],
)
def test_a_stack_that_cannot_be_is_rejected(tiny, keys, problem):
    with pytest.raises(ValueError, match=problem.replace(".", r"\.").replace("?", r"\?")):
        tiny.changed(**keys)


def test_an_option_that_two_kinds_have_must_name_its_kind(tiny, monkeypatch):
    monkeypatch.setitem(KINDS, "other", replace(KINDS["gated_delta_net"], name="other"))
    both = {"num_layers": 2, "mixer": ["gated_delta_net", "other"]}
    with pytest.raises(ValueError, match=r"give model\.gated_delta_net\.num_heads or model\.other"):
        tiny.changed(**both, num_heads=3, d_head=4)
    sizes = {"other": {"num_heads": 3, "d_head": 4}}
    assert meta_model(tiny.changed(**both, **sizes)).layers[1].mixer.num_heads == 3


def test_a_kind_is_registered_once():
    register(KINDS["swiglu"])
    with pytest.raises(ValueError, match="there is another ffn of the kind swiglu"):
        register(Kind("swiglu", "ffn", NoOptions, Careless))
    with pytest.raises(ValueError, match="'schedule' cannot name a kind: it is a key"):
        register(Kind("schedule", "ffn", NoOptions, Careless))
    with pytest.raises(ValueError, match="'two words' cannot name a kind"):
        register(Kind("two words", "ffn", NoOptions, Careless))


def test_configs_of_earlier_versions_are_read(tmp_path):
    """Flat options, a residual by its unit, and the old names of forms."""
    old = Path(__file__).parents[1] / "data" / "config-0.1.0.toml"
    config = configs.load(old)
    assert config.model.options["gated_delta_net"].num_heads == 2
    assert config.model.options["swiglu"].d_ffn == 24
    assert config.model.pass_rules()["pass_residual"].unit == "mixer"
    assert config.train is not None
    assert config.train.form == "torch"
