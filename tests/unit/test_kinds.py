"""A user's own kinds: registration, options, and errors; test_mixers.py runs tests/toys."""

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mixerloop import config as configs
from mixerloop.config import RunConfig
from mixerloop.kinds import KINDS, Kind, register
from mixerloop.model.checkpoint import load_model
from mixerloop.model.ffns.swiglu import SwiGLU
from mixerloop.model.initialization import fresh_model, meta_model
from mixerloop.model.lens import UNWATCHED
from mixerloop.model.sublayer import Cost, FFNModule, Output, ffn_kind
from mixerloop.training.checkpoints import optimizer_tensors, restore, save
from mixerloop.training.loss import Loss
from mixerloop.training.objectives.next_token import NllOnly
from mixerloop.training.optimizer import make_optimizer
from mixerloop.training.parallel import ParallelLoss, Ranks
from mixerloop.training.position import Position
from small_model import SMALL, small_config
from stacks import large_model
from toys import (  # noqa: F401
    rereading,
    running_mean,
    token_shift,
    toy_attention,
    two_experts,
)


def test_auxiliary_losses_count_once_for_each_scored_token():
    config = small_config(**SMALL, schedule="no_loop").changed(ffn="two_experts", balance=0.5)
    model = large_model(config)
    loss = Loss(model)
    tokens = torch.randint(12, (3, 10))
    labels = tokens.clone()
    labels[:, :4] = -100
    nll = loss(tokens, labels, objective=NllOnly()).total
    auxiliary = model.walk(model.embed(tokens), model.schedule).losses["balance"]
    total, parts, _ = loss(tokens, labels)
    torch.testing.assert_close(total, nll + 18 * auxiliary)
    assert parts == {"nll": nll, "balance": 18 * auxiliary}
    assert auxiliary > 0.01
    total.backward()
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
    with pytest.raises(ValueError, match="fsdp: a step of this model may leave weights"):
        ParallelLoss(Loss(model), ranks=Ranks(num_ranks=2), parallel="fsdp")


class Forgetful(SwiGLU):
    def forward(self, x, state=None, look=UNWATCHED):
        return super().forward(torch.nn.functional.dropout(x, 0.5), state, look)


def test_recomputing_draws_the_same_random_numbers(tiny):
    ffn_kind("forgetful", KINDS["swiglu"].options)(Forgetful)
    config = tiny.changed(ffn="forgetful", d_ffn=28)
    gradients = []
    for recompute in (False, True):
        model = fresh_model(config, seed=0)
        torch.manual_seed(3)
        Loss(model, recompute=recompute)(*[torch.arange(20)[None] % 50] * 2).total.backward()
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
        ({"mixer": []}, "model.mixer: names no kind"),
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
