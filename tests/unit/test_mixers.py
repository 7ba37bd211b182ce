"""Every kind of mixer and ffn: those of the package, and a user's own in tests/toys."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mixerloop import config as configs
from mixerloop.config import DataConfig, RunConfig, TrainConfig
from mixerloop.data.windows import DrawnWindows, spread_positions
from mixerloop.description import describe, description_text
from mixerloop.evaluation.looped_scorer import LoopedScorer
from mixerloop.evaluation.scorer import Candidate
from mixerloop.interop.folders import export
from mixerloop.model.accounting import account_model, account_schedule, training_flops_per_token
from mixerloop.model.checkpoint import load_model
from mixerloop.model.decoding import advance, prefill, side_by_side, start
from mixerloop.model.initialization import fresh_model
from mixerloop.parsing import from_dict
from mixerloop.schedule import LOOPS
from mixerloop.training.loss import Loss
from mixerloop.training.run_setup import begin, settled
from mixerloop.training.trainer import Trainer
from mixerloop.transport.trajectories import measure
from small_model import small_config
from stacks import FFNS, HEADS, MIXERS, SIZES, STACKS, large_model, stack_config
from toys import (  # noqa: F401
    rereading,
    running_mean,
    token_shift,
    toy_attention,
    two_experts,
)

TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}
ROUNDING = 3e-5  # float32, of states that are longer than in decoding
TOKENS = 11
DEFAULTS = {"gated_delta_net": HEADS, "swiglu": {"d_ffn": 24}}
TOYS = {
    "toy mixer": {"mixer": "running_mean", "swiglu": {"d_ffn": 24}},
    "toy attention": {"mixer": "toy_attention", "swiglu": {"d_ffn": 24}},
    "toy experts": {"ffn": "two_experts", "gated_delta_net": HEADS},
    "toy ffn with a state": {"ffn": "token_shift", "gated_delta_net": HEADS},
    "toy rule": {"rereading": "mixer", **DEFAULTS},
    "toys": {
        "mixer": ["running_mean", "toy_attention"],
        "ffn": "two_experts",
        "rereading": {"unit": "stack", "penalty": 0.1},
        "pass_residual": "stack",
    },
}
LOOPED = [f"{loop}(2)" for loop in LOOPS if loop != "no_loop"]
LOOP_OF = dict(zip([*STACKS, *TOYS], LOOPED * 9, strict=False)) | {
    "toy rule": "mixer_loop(2)",
    "toys": "full_loop(3)",
}
"""A loop for each stack: tests/unit/test_decoding.py and test_looped_lm.py have all loops."""
every_stack = pytest.mark.parametrize("name", STACKS)
every_kind = pytest.mark.parametrize("name", LOOP_OF)


def config_of(name, loop=None):
    loop = loop or LOOP_OF[name]
    if name in STACKS:
        return stack_config(name, loop)
    return small_config(**SIZES, schedule=loop, **TOYS[name])


def tokens_of(batch=2, seq=TOKENS):
    return torch.randint(SIZES["vocab_size"], (batch, seq))


@every_kind
def test_a_config_is_written_and_read(name):
    config = config_of(name)
    written = configs.dump(RunConfig(model=config))
    again = configs.run_config(configs.tomllib.loads(written)).model
    assert configs.dump(RunConfig(model=again)) == written
    assert again.layer_kinds() == config.layer_kinds()
    assert again.options == config.options


@every_kind
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_token_by_token_in_chunks_and_parallel_are_one_model(name, dtype):
    model, tokens = large_model(config_of(name), dtype=dtype), tokens_of()
    with torch.no_grad():
        whole = model(tokens)
    assert whole.std() > 0.1
    close = {"rtol": 0, "atol": TOLERANCES[dtype] * float(whole.abs().max())}
    state, snapshots = start(model, batch=2), []
    for at in range(TOKENS):
        snapshots.append(state)
        logits, state = advance(model, tokens[:, at : at + 1], state)
        torch.testing.assert_close(logits[:, 0], whole[:, at], **close)
    logits, _ = prefill(model, tokens, start(model, batch=2), chunk_tokens=4)
    torch.testing.assert_close(logits, whole[:, -1], **close)
    again, _ = advance(model, tokens[:, 6:], snapshots[6])  # rolled back
    torch.testing.assert_close(again, whole[:, 6:], **close)
    forked, _ = advance(model, tokens[:, 6:].repeat_interleave(3, 0), snapshots[6].fork(3))
    torch.testing.assert_close(forked, again.repeat_interleave(3, 0), **close)


@every_kind
def test_context_off_is_the_mixer_on_each_token_alone(name):
    model = large_model(config_of(name), dtype=torch.float64)
    x = torch.randn(2, 5, SIZES["d_model"], dtype=torch.float64)
    for layer in model.layers:
        update = layer.mixer.context_off(x)
        alone = layer.mixer(x.flatten(0, 1)[:, None]).update.view_as(x)
        torch.testing.assert_close(update, alone, rtol=0, atol=1e-12)
        assert not torch.allclose(layer.mixer(x).update[:, 1:], update[:, 1:], atol=1e-3)


@every_kind
def test_transport_restores_the_model_bit_for_bit(name):
    model = large_model(config_of(name))
    tokens = np.random.default_rng(0).integers(SIZES["vocab_size"], size=(3, 12))
    windows = DrawnWindows(tokens, spread_positions(12, 3))
    trajectories = measure(model, windows)
    assert trajectories.intact_max_abs_error == 0.0
    assert trajectories.hellinger_squared.max() > 1e-6
    plain = measure(model, windows, engine="plain")
    np.testing.assert_allclose(trajectories.gram, plain.gram, atol=1e-5)


@every_stack
def test_the_definition_has_the_same_gradients(name):
    tokens, gradients = tokens_of(), []
    for form in ("definition", "torch", "native"):
        model = large_model(stack_config(name, "full_loop(2)"), form=form)
        Loss(model)(tokens, tokens).total.backward()
        gradients.append({key: one.grad for key, one in model.named_parameters()})
    for others in gradients[1:]:
        for key, gradient in gradients[0].items():
            size = float(gradient.abs().max())
            assert size > 0, key
            torch.testing.assert_close(others[key], gradient, rtol=0, atol=1e-4 * size)


@every_kind
def test_every_parameter_and_buffer_has_an_initial_value(name):
    first, second = (fresh_model(config_of(name), seed=3) for _ in range(2))
    tensors = {**dict(first.named_parameters()), **dict(first.named_buffers())}
    others = {**dict(second.named_parameters()), **dict(second.named_buffers())}
    for key, tensor in tensors.items():
        assert tensor.isfinite().all(), key
        assert torch.equal(tensor, others[key]), key
        if key.endswith("proj.weight"):
            assert 0.005 < tensor.std() < 0.05, key
        if key.endswith("norm.weight"):
            assert (tensor == 1).all(), key
        if key.endswith(".bias"):
            assert not tensor.any(), key


@pytest.mark.parametrize("name", [*MIXERS, *FFNS, "hybrid"])
def test_released_initial_values_shrink_the_last_projection(name):
    schedule = "ffn_loop(2)" if name in FFNS else "mixer_loop(2)"
    config = stack_config(name, schedule)
    shared, released = (fresh_model(config, seed=0, rule=rule) for rule in ("shared", "released"))
    last = "ffn.down_proj" if name in FFNS else "mixer.output_proj"
    for key, value in released.named_parameters():
        factor = (2 * 2 * 2) ** -0.5 if last in key else 1.0
        torch.testing.assert_close(value, factor * shared.get_parameter(key))


@every_kind
def test_costs_and_states_are_counted_layer_by_layer(name):
    config = config_of(name)
    account, model = account_model(config, prefix_tokens=9), fresh_model(config, seed=0)
    of_schedule = account_schedule(account, config.occurrences(), num_layers=2)
    state = start(model)
    for num_tokens in range(1, 10):
        _, state = advance(model, torch.zeros(1, 1, dtype=torch.int64), state)
        costs = [model.sublayer(one).cost(num_tokens) for one in config.occurrences()]
        assert state.nbytes() == sum(cost.state_bytes for cost in costs)
    assert of_schedule.state_bytes_per_sequence == state.nbytes()
    macs = sum(
        sum(model.sublayer(one).cost(place).recurrence_macs for place in range(9)) / 9
        + model.sublayer(one).cost(0).projection_macs
        for one in config.occurrences()
    )
    head = model.embedding.weight.numel()
    assert training_flops_per_token(model, context=9) == round(6 * (head + macs))


@every_kind
def test_scores_do_not_depend_on_sharing(name):
    model = large_model(config_of(name))
    generator = np.random.default_rng(0)
    questions = []
    for length in (40, 150, 300):  # too unequal to run as one batch
        shared = generator.integers(SIZES["vocab_size"], size=length)
        ends = [generator.integers(SIZES["vocab_size"], size=size) for size in (4, 6)]
        questions.append([Candidate(np.append(shared, end), length) for end in ends])
    scorers = [LoopedScorer(model, share_prefixes=share) for share in (True, False)]
    with_sharing, plain = (scorer.score(questions) for scorer in scorers)
    assert scorers[0].tokens_processed < 0.7 * scorers[1].tokens_processed
    for question, others in zip(with_sharing, plain, strict=True):
        for one, other in zip(question, others, strict=True):
            np.testing.assert_allclose(one.losses, other.losses, atol=ROUNDING)


@pytest.mark.parametrize("name", ["hybrid", "experts, sigmoid", "toys", "toy ffn with a state"])
def test_an_interrupted_run_ends_in_the_same_bits(name, hops_data, tmp_path):
    """tests/e2e/test_mixers_in_processes.py says so of each stack, in processes that are killed."""
    table = {"steps": 4, "global_batch": 2, "micro_batch": 1, "warmup_steps": 1, "peak_lr": 0.01}
    table |= {"compute_dtype": "float32", "checkpoint_every": 2, "keep_last": 9}
    run_config = RunConfig(
        model=config_of(name),
        data=DataConfig(path=str(hops_data)),
        train=from_dict(TrainConfig, table | {"evaluate_windows": 2, "tensorboard": False}),
    )
    tensors = {}
    for run, stops in (("whole", [None]), ("parts", [1, 3, None])):
        opened = begin(tmp_path / run, settled(run_config))
        for until in stops:
            Trainer(tmp_path / run, opened).train(until=until)
        for file in ("model.safetensors", "optimizer/optimizer.safetensors"):
            tensors[run, file] = load_file(tmp_path / run / "checkpoints/step-4" / file)
    for file in ("model.safetensors", "optimizer/optimizer.safetensors"):
        whole, parts = tensors["whole", file], tensors["parts", file]
        assert whole.keys() == parts.keys()
        assert all(torch.equal(tensor, parts[key]) for key, tensor in whole.items())
    loaded, _ = load_model(tmp_path / "whole")
    fresh = load_file(tmp_path / "whole/checkpoints/step-0/model.safetensors")
    for key, weight in loaded.named_parameters():
        never_chosen = name == "toys" and ".experts.1." in key
        assert torch.equal(fresh[key], weight) == never_chosen, key
    assert all(buffer.isfinite().all() and not buffer.is_meta for buffer in loaded.buffers())


def test_sequences_with_different_positions_stand_side_by_side():
    """A window that is full has one size, whatever the number of tokens."""
    for name in ("attention, window", "retention"):
        model, tokens = large_model(stack_config(name), dtype=torch.float64), tokens_of(seq=14)
        states = [
            prefill(model, tokens[row : row + 1, :length], start(model))[1]
            for row, length in enumerate((6, 9))
        ]
        both, _ = advance(model, tokens[:, -2:], side_by_side(states))
        for row, state in enumerate(states):
            alone, _ = advance(model, tokens[row : row + 1, -2:], state)
            torch.testing.assert_close(both[row : row + 1], alone, rtol=0, atol=1e-10)


def test_the_states_of_attention_grow_up_to_the_window():
    tokens = tokens_of(batch=1, seq=9)
    sizes = {}
    for name in ("attention", "attention, window"):
        model = fresh_model(stack_config(name, "no_loop"), seed=0)
        sizes[name] = [
            prefill(model, tokens[:, :length], start(model))[1].nbytes() for length in (2, 5, 9)
        ]
        model_state = start(model)
        with pytest.raises(ValueError, match="only after equal numbers of tokens"):
            side_by_side([model_state, prefill(model, tokens, model_state)[1]])
    grown, bounded = sizes.values()
    assert grown[0] < grown[1] < grown[2]
    assert bounded[0] < bounded[1] == bounded[2]


def test_a_window_as_long_as_the_text_changes_nothing():
    plain, wide, narrow = (
        large_model(small_config(**SIZES, mixer="attention", attention=HEADS | window, d_ffn=24))
        for window in ({}, {"window": TOKENS}, {"window": TOKENS - 1})
    )
    tokens = tokens_of()
    torch.testing.assert_close(wide(tokens), plain(tokens))
    torch.testing.assert_close(narrow(tokens)[:, :-1], plain(tokens)[:, :-1])
    assert not torch.allclose(narrow(tokens)[:, -1], plain(tokens)[:, -1], atol=1e-4)


@every_stack
def test_bfloat16_is_near_float32(name):
    model, tokens = large_model(stack_config(name)), tokens_of()
    with torch.no_grad():
        whole = model(tokens)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            narrow = model(tokens)
            logits, _ = prefill(model, tokens, start(model, batch=2), chunk_tokens=4)
    assert 0 < (narrow - whole).norm() / whole.norm() < 0.2
    assert (logits - whole[:, -1]).norm() / whole[:, -1].norm() < 0.2


@pytest.mark.parametrize("name", [name for name in LOOP_OF if name != "gated_delta_net"])
def test_a_kind_without_a_released_layout_is_not_exported(name, tmp_path):
    with pytest.raises(ValueError, match=r"ha(s|ve) no released layout"):
        export(fresh_model(config_of(name), seed=0), tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"attention": HEADS | {"windows": 3}}, "unknown key windows; did you mean window?"),
        ({"attention": HEADS | {"window": 0}}, "model.attention.window must be from 1"),
        ({"attention": HEADS | {"num_kv_heads": 3}}, "num_kv_heads must divide num_heads = 2"),
        ({"attention": HEADS | {"d_head": 5}}, "model.attention.d_head must be even"),
        ({"attention": HEADS | {"rotary": "both"}}, "model.attention.rotary = 'both'"),
        ({"attention": HEADS | {"rotary_base": 1.0}}, "rotary_base must be above 1"),
        ({"attention": {"num_heads": 2}}, "model.attention.d_head is missing"),
        ({"attention": HEADS, "mamba2": HEADS}, "model.mamba2: no layer is of this kind"),
        ({"mixer": "mamba2", "mamba2": HEADS | {"num_groups": 3}}, "must divide num_heads = 2"),
        ({"mixer": "kimi_delta", "kimi_delta": HEADS | {"least_log_decay": 1.0}}, "below 0"),
        ({"mixer": "3 atention"}, "unknown mixer 'atention'; did you mean attention?"),
        ({"mixer": "x attention"}, "'x attention' is not a kind, nor a number of layers"),
        ({"mixer": "0 attention"}, "'0 attention' is not a kind, nor a number of layers"),
        ({"mixer": "2 attention, 1 mamba2"}, "3 kinds cannot take turns over 2 layers"),
        ({"mixer": 3}, "model.mixer = 3: not the name of a kind, nor a list of them"),
        ({"ffn": "experts", "experts": {"d_ffn": 9}}, "d_ffn must be a multiple of num_chosen = 2"),
        (
            {"ffn": "experts", "experts": {"d_ffn": 9, "num_chosen": 9}},
            "num_chosen must be at most num_experts = 8",
        ),
        ({"ffn": "experts", "experts": {"d_ffn": 8, "balance": -1.0}}, "balance must be 0 or more"),
    ],
)
def test_options_that_cannot_be_are_rejected_by_name(keys, problem):
    given = {"mixer": "attention"} | keys
    if "ffn" not in keys:
        given |= {"swiglu": {"d_ffn": 24}}
    for kind in ("attention", "mamba2"):
        if kind in str(given["mixer"]):
            given.setdefault(kind, HEADS)
    with pytest.raises(ValueError, match="model") as caught:
        small_config(**SIZES, **given)
    assert problem in str(caught.value)


def test_kinds_take_turns_by_their_counts():
    options = {"gated_delta_net": MIXERS["gated_delta_net"], "attention": HEADS}
    sizes = SIZES | {"num_layers": 8, "swiglu": {"d_ffn": 24}}
    one, other = (
        small_config(**sizes, mixer=mixer, **options)
        for mixer in (
            "3 gated_delta_net, 1 attention",
            [*["gated_delta_net"] * 3, "attention"],
        )
    )
    assert one == other
    kinds = [mixer for mixer, _ in one.layer_kinds()]
    assert kinds == 2 * [*["gated_delta_net"] * 3, "attention"]
    assert replace(one, schedule="2x(8x(A F))").occurrences()


def test_a_hybrid_is_described_by_its_kinds(tmp_path):
    config = stack_config("hybrid", "mixer_loop(2)")
    (tmp_path / "hybrid.toml").write_text(configs.dump(RunConfig(model=config)))
    described = describe(tmp_path / "hybrid.toml")
    model = fresh_model(config, seed=0)
    by_kind = {stated.kind: stated for stated in described.states}
    assert by_kind.keys() == {"mamba2", "attention"}
    for kind, layer in (("mamba2", 0), ("attention", 1)):
        mixer = model.layers[layer].mixer
        assert by_kind[kind].layers == 1
        assert by_kind[kind].state_bytes == mixer.cost(1023).state_bytes
        assert by_kind[kind].grows == (kind == "attention")
    assert by_kind["attention"].stops_at == 3
    text = description_text(described)
    assert "attention" in text
    assert "mamba2" in text
