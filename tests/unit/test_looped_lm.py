from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mixerloop.model.initialization import fresh_model
from mixerloop.model.lens import Look
from mixerloop.model.mixers.gated_delta_net import GatedDeltaNet
from mixerloop.model.sublayer import Output
from mixerloop.model.walk import walk
from mixerloop.notation import parse, resolve
from mixerloop.ops.gated_delta_mixing import rule_inputs
from mixerloop.schedule import LOOPS, Occurrence, full_loop, mixer_loop, no_loop


def tokens_for(config, batch=2, seq=70, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab_size, (batch, seq), generator=generator)


@pytest.mark.parametrize("pass_residual", ["none", "stack"])
def test_with_one_pass_every_loop_gives_the_same_logits_bit_for_bit(tiny, pass_residual):
    tokens = tokens_for(tiny)
    config = tiny.changed(pass_residual=pass_residual)
    logits = [fresh_model(replace(config, schedule=f"{name}(1)"), seed=0)(tokens) for name in LOOPS]
    for other in logits[1:]:
        assert torch.equal(logits[0], other)


def test_the_five_loops_are_five_different_functions(tiny):
    tokens = tokens_for(tiny)
    logits = [fresh_model(replace(tiny, schedule=name), seed=0)(tokens) for name in LOOPS]
    for index, one in enumerate(logits):
        for other in logits[index + 1 :]:
            assert (one - other).abs().max() > 1e-4


def test_the_walk_is_the_composition_the_paper_writes(tiny):
    model = fresh_model(tiny, seed=0).double()
    tokens = tokens_for(tiny)

    def mixer(layer, h):
        return h + layer.mixer(layer.mixer_norm(h)).update

    def ffn(layer, h):
        return h + layer.ffn(layer.ffn_norm(h)).update

    h = model.embedding(tokens)
    for layer in model.layers:
        for _ in range(4):
            h = mixer(layer, h)
        h = ffn(layer, h)
    expected = F.linear(model.final_norm(h), model.embedding.weight)
    assert torch.equal(model(tokens), expected)

    h = model.embedding(tokens)
    for _ in range(4):
        for layer in model.layers:
            h = ffn(layer, mixer(layer, h))
    expected = F.linear(model.final_norm(h), model.embedding.weight)
    assert torch.equal(model(tokens, schedule=full_loop(tiny.num_layers, 4)), expected)


def test_no_token_sees_a_later_one(tiny):
    model = fresh_model(tiny, seed=0).double()
    tokens = tokens_for(tiny)
    changed = tokens.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % tiny.vocab_size
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :40], after[:, :40], rtol=0, atol=1e-12)
    assert (before[:, 40:] - after[:, 40:]).abs().min(dim=-1).values.max() > 0


def test_chosen_positions_are_rows_of_all_logits(tiny):
    model = fresh_model(tiny, seed=0)
    tokens = tokens_for(tiny)
    everything = model(tokens)
    shared = model(tokens, positions=torch.tensor([3, -1]))
    torch.testing.assert_close(shared, everything[:, [3, -1]])
    own = model(tokens, positions=torch.tensor([[3, 5], [0, 69]]))
    torch.testing.assert_close(own[0], everything[0, [3, 5]])
    torch.testing.assert_close(own[1], everything[1, [0, 69]])


def test_the_head_is_computed_at_chosen_positions_only(tiny, monkeypatch):
    model = fresh_model(tiny, seed=0)
    rows = []
    linear = F.linear

    def counting(x, weight, *rest):
        if weight is model.embedding.weight:
            rows.append(x.shape[:-1].numel())
        return linear(x, weight, *rest)

    monkeypatch.setattr(F, "linear", counting)
    model(tokens_for(tiny), positions=torch.tensor([-1]))
    assert rows == [2]


# --- context-off --------------------------------------------------------------------------------


def test_with_every_mixer_context_off_the_model_sees_one_token_at_a_time(tiny):
    model = fresh_model(replace(tiny, schedule="full_loop(2)"), seed=0).double()
    tokens = tokens_for(tiny)
    mixers = [o for o in model.schedule if o.sublayer == "mixer"]
    changed = tokens_for(tiny, seed=1)
    changed[:, 7] = tokens[:, 7]
    before = model(tokens, context_off=mixers)[:, 7]
    after = model(changed, context_off=mixers)[:, 7]
    torch.testing.assert_close(before, after, rtol=0, atol=1e-12)


def test_context_off_touches_its_occurrence_only(tiny):
    model = fresh_model(tiny, seed=0)
    tokens = tokens_for(tiny)
    off = Occurrence(1, "mixer", 2)
    before, after = {}, {}

    for into, context_off in ((before, ()), (after, (off,))):

        def keep(address, x, into=into):
            into[address.occurrence] = x

        model(tokens, context_off=context_off, lens={"*.update": keep})
    differing = [o for o in model.schedule if not torch.equal(before[o], after[o])]
    assert differing == list(model.schedule[model.schedule.index(off) :])


# --- the walk ---------------------------------------------------------------------------------


def test_a_walk_adds_updates_sums_losses_and_hands_states_on():
    """Hand-computed: a mixer adds twice the residual, the ffn adds 100 and its state."""
    schedule = mixer_loop(1, 2)
    seen = []

    def run(occurrence, x, state, look):
        seen.append((str(occurrence), x.item(), None if state is None else state[0].item()))
        update = 2 * x if occurrence.sublayer == "mixer" else x + 100
        losses = {"size": x.sum()} if occurrence.sublayer == "mixer" else {"last": x.sum()}
        return Output(update, (x,), losses=losses)

    one = torch.ones(1, 1, 1)
    walked = walk(run, one, schedule)
    assert seen == [
        ("layer0.mixer.pass0", 1, None),
        ("layer0.mixer.pass1", 3, None),
        ("layer0.ffn.pass0", 9, None),
    ]
    assert walked.residual.item() == 118
    assert walked.losses == {"size": 4, "last": 9}
    assert (walked.states, walked.kept) == ({}, ())
    first, second, last = schedule
    states = {occurrence: (torch.tensor(float(n)),) for n, occurrence in enumerate(schedule)}
    looks = {
        second: Look(second, {"input": [lambda address, x: x + 1]}),
        last: Look(last, {"update": [lambda address, x: torch.zeros_like(x)]}),
    }
    walked = walk(run, one, schedule, states=states, looks=looks)
    assert [entry[1:] for entry in seen[3:]] == [(1, 0), (4, 1), (12, 2)]
    assert walked.residual.item() == 12
    assert {one: state[0].item() for one, state in walked.states.items()} == {
        first: 1,
        second: 4,
        last: 12,
    }


# --- the learned per-pass residual ---------------------------------------------------------------

UNITS = {
    "mixer": "mixer_loop(3)",
    "ffn": "ffn_loop(3)",
    "block": "block_loop(3)",
    "stack": "full_loop(3)",
}


def model_with_pass_residual(tiny, unit, schedule=None):
    config = tiny.changed(pass_residual=unit, schedule=schedule or UNITS[unit])
    model = fresh_model(config, seed=0)
    weights = model.get_parameter("pass_residual.weight")
    weights.data.normal_(generator=torch.Generator().manual_seed(1))
    return model, weights


@pytest.mark.parametrize(
    ("name", "unit"),
    [("full_loop", "mixer"), ("no_loop", "ffn"), ("mixer_loop", "block"), ("block_loop", "stack")],
)
def test_the_pass_residual_changes_nothing_before_it_has_learned(tiny, name, unit):
    tokens = tokens_for(tiny)
    config = replace(tiny, schedule=name)
    plain = fresh_model(config, seed=0)(tokens)
    assert torch.equal(fresh_model(config.changed(pass_residual=unit), seed=0)(tokens), plain)


@pytest.mark.parametrize("unit", UNITS)
def test_the_pass_residual_adds_what_entered_each_pass(tiny, unit):
    model, w = model_with_pass_residual(tiny, unit)

    def a(layer, h):
        return h + layer.mixer(layer.mixer_norm(h)).update

    def f(layer, h):
        return h + layer.ffn(layer.ffn_norm(h)).update

    def passes(h, body):
        for index in range(3):
            h = body(h) + w[index] * h
        return h

    def stack(h):
        for layer in model.layers:
            h = f(layer, a(layer, h))
        return h

    h = model.embedding(tokens_for(tiny))
    if unit == "stack":
        h = passes(h, stack)
    else:
        for layer in model.layers:
            if unit == "mixer":
                h = f(layer, passes(h, lambda h, layer=layer: a(layer, h)))
            elif unit == "ffn":
                h = passes(a(layer, h), lambda h, layer=layer: f(layer, h))
            else:
                h = passes(h, lambda h, layer=layer: f(layer, a(layer, h)))
    torch.testing.assert_close(model(tokens_for(tiny)), model.read_out(h))


def test_a_stack_that_loops_between_a_prelude_and_a_coda_adds_what_entered_each_pass(tiny):
    schedule = "A F 3x(2x(A F)) A F"
    model, w = model_with_pass_residual(replace(tiny, num_layers=4), "stack", schedule)
    h = model.embedding(tokens_for(tiny))

    def block(h, number):
        layer = model.layers[number]
        h = h + layer.mixer(layer.mixer_norm(h)).update
        return h + layer.ffn(layer.ffn_norm(h)).update

    h = block(h, 0)
    for index in range(3):
        h = block(block(h, 1), 2) + w[index] * h
    h = block(h, 3)
    torch.testing.assert_close(model(tokens_for(tiny)), model.read_out(h))


@pytest.mark.parametrize("unit", UNITS)
def test_a_schedule_walked_in_parts_gives_the_whole(tiny, unit):
    model, _ = model_with_pass_residual(replace(tiny, num_layers=2), unit)
    embedded = model.embed(tokens_for(tiny, seq=20))
    whole = model.walk(embedded, model.schedule).residual
    entering = {}
    for cut, occurrence in enumerate(model.schedule):
        head, tail = model.schedule[:cut], model.schedule[cut:]

        def keep(address, x):
            entering[address.occurrence] = x

        model.walk(embedded, model.schedule, lens={f"{occurrence}.input": keep})
        half = model.walk(embedded, head)
        assert torch.equal(half.residual, entering[occurrence])
        rest = model.walk(half.residual, tail, kept=half.kept)
        assert torch.equal(rest.residual, whole)


def test_a_part_that_starts_inside_a_pass_needs_what_entered_it(tiny):
    model, _ = model_with_pass_residual(tiny, "stack")
    with pytest.raises(ValueError, match=r"layer2\.ffn\.pass0 ends a pass that began earlier"):
        model.walk(model.embed(tokens_for(tiny)), model.schedule[1:])


def test_fewer_passes_use_the_first_rows_and_more_are_refused(tiny):
    model, w = model_with_pass_residual(tiny, "mixer", "mixer_loop(2)")
    tokens = tokens_for(tiny)
    once = model(tokens, schedule=no_loop(tiny.num_layers))
    w.data[1] = 0
    assert torch.equal(model(tokens, schedule=no_loop(tiny.num_layers)), once)
    w.data[0] = 0
    assert not torch.equal(model(tokens, schedule=no_loop(tiny.num_layers)), once)
    with pytest.raises(ValueError, match="pass2: pass_residual was learned for 2 passes"):
        model(tokens, schedule=mixer_loop(tiny.num_layers, 3))


# --- precision ----------------------------------------------------------------------------------


def test_under_bfloat16_autocast_decay_norms_and_residual_stay_float32(tiny):
    model = fresh_model(tiny, seed=0)
    mixer = model.layers[0].mixer
    assert isinstance(mixer, GatedDeltaNet)
    x = torch.randn(2, 9, tiny.d_model)
    with torch.autocast("cpu", torch.bfloat16):
        assert mixer.qkv_proj(x).dtype == torch.bfloat16
        projected = mixer._projected(x)
        assert {tensor.dtype for tensor in projected} == {torch.bfloat16}
        inputs = rule_inputs(projected, projected.qkv, mixer._weights())
        assert {tensor.dtype for tensor in inputs} == {torch.float32}
        assert model.final_norm(x.bfloat16()).dtype == torch.float32
        residual = model.walk(model.embed(tokens_for(tiny)), model.schedule).residual
        assert residual.dtype == torch.float32
        state = mixer(x).state
    assert state.memory.dtype == torch.float32
    assert mixer.A_log.dtype == mixer.dt_bias.dtype == torch.float32


def test_bfloat16_stays_near_float32(tiny):
    model = fresh_model(tiny, seed=0)
    tokens = tokens_for(tiny)
    wide = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = model(tokens)
    assert narrow.dtype == torch.float32
    # Eight bits of mantissa, a few dozen roundings in a row, on logits of order 0.1.
    assert (wide - narrow).abs().max() < 2.0**-8 * 10 * wide.abs().max()
    assert not torch.equal(wide, narrow)


@pytest.mark.parametrize("schedule", ["mixer_loop(2)", "full_loop(2)"])
def test_every_parameter_has_a_gradient_that_finite_differences_confirm(tiny, schedule):
    model = fresh_model(replace(tiny, schedule=schedule), seed=0).double()
    tokens = tokens_for(tiny, batch=1, seq=9)

    def loss():
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    loss().backward()
    generator = torch.Generator().manual_seed(0)
    for parameter_name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, parameter_name
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            step = 1e-6
            parameter += step * direction
            up = loss()
            parameter -= 2 * step * direction
            down = loss()
            parameter += step * direction
        slope = ((up - down) / (2 * step)).item()
        assert slope == pytest.approx((gradient * direction).sum().item(), abs=1e-7), parameter_name


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.tensor([[0, 50]]), "token id 50 is outside the vocabulary of 50"),
        (torch.tensor([[-1, 3]]), "token id -1 is outside the vocabulary of 50"),
        (torch.tensor([[0.0, 1.0]]), "tokens must be int32 or int64, got torch.float32"),
        (torch.tensor([1, 2]), r"tokens must be \[batch, seq\]"),
        (torch.zeros(0, 1, dtype=torch.int64), r"seq > 0 and batch > 0, got \(0, 1\)"),
        (torch.zeros(1, 0, dtype=torch.int64), r"tokens must be \[batch, seq\] with seq > 0"),
        (torch.zeros(1, 3, dtype=torch.int64, device="meta"), "tokens are on the device meta"),
    ],
)
def test_tokens_that_cannot_be_embedded_are_refused(tiny, tokens, message):
    with pytest.raises(ValueError, match=message):
        fresh_model(tiny, seed=0)(tokens)


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": torch.tensor([70])}, "positions must lie in a sequence of 70 tokens"),
        ({"positions": torch.tensor([0.5])}, "positions must be int32 or int64"),
        ({"positions": torch.tensor([[1], [2], [3]])}, r"positions must be \[num\] or \[2, num\]"),
        ({"schedule": no_loop(4)}, "layer3.mixer.pass0: the model has 3 layers"),
        ({"context_off": [Occurrence(0, "mixer", 9)]}, "layer0.mixer.pass9 is not in the schedule"),
        ({"context_off": [Occurrence(0, "ffn", 0)]}, "only a mixer has context to switch off"),
        (
            {"lens": {"layer0.ffn.pass1.input": print}},
            r"'layer0\.ffn\.pass1\.input' matches no address of this walk; near: layer0",
        ),
        ({"lens": {"layer0.ffn.*.udpate": print}}, r"near: layer0\.ffn\.pass0\.update"),
        (
            {"lens": {"layer0.ffn.pass0.input": lambda address, x: x.sum()}},
            r"layer0\.ffn\.pass0\.input: a watch returns None or a tensor of",
        ),
        ({"lens": {"*.output": lambda address, x: 1}}, "a watch returns None or a tensor"),
    ],
)
def test_options_that_would_do_nothing_or_harm_are_refused(tiny, options, message):
    with pytest.raises(ValueError, match=message):
        fresh_model(tiny, seed=0)(tokens_for(tiny), **options)


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tokens": None}, "tokens must be a tensor, got NoneType"),
        ({"tokens": [[1]]}, "tokens must be a tensor, got list"),
        ({"tokens": np.array([[1]])}, "tokens must be a tensor, got ndarray; torch.as_tensor"),
        (
            {"tokens": torch.tensor([[1]]).to_sparse()},
            "tokens must be a dense tensor",
        ),
        (
            {"tokens": torch.nested.nested_tensor([torch.tensor([1])], layout=torch.jagged)},
            "tokens must be a dense",
        ),
        ({"positions": torch.tensor([0]).to_sparse()}, "positions must be a dense tensor"),
        ({"positions": [0]}, "positions must be a tensor, got list"),
        ({"schedule": "full_loop"}, "schedule must be a tuple of occurrences, got 'full_loop'"),
        ({"schedule": ("A", "F")}, "schedule must be a tuple of occurrences"),
        ({"context_off": "layer0.mixer.pass0"}, "context_off must be a collection of occurrences"),
        ({"context_off": 1}, "context_off must be a collection of occurrences, got 1"),
        ({"lens": {("a", "b"): print}}, "lens must map patterns of addresses to functions"),
        ({"lens": {"*.input": 3}}, "lens must map patterns of addresses to functions"),
    ],
)
def test_arguments_of_wrong_types_are_named(tiny, wrong, message):
    with pytest.raises(TypeError, match=message):
        fresh_model(tiny, seed=0)(**{"tokens": tokens_for(tiny), **wrong})


def test_weights_that_are_not_float32_are_refused(tiny):
    with pytest.raises(ValueError, match=r"weights must stay float32, got torch\.bfloat16"):
        fresh_model(tiny, seed=0).bfloat16()(tokens_for(tiny))


def test_an_empty_schedule_runs_nothing(tiny):
    model = fresh_model(tiny, seed=0)
    tokens = tokens_for(tiny)
    assert torch.equal(model(tokens, schedule=()), model.read_out(model.embed(tokens)))


def test_the_same_weights_run_under_any_schedule(tiny):
    model = fresh_model(tiny, seed=0)
    tokens = tokens_for(tiny)
    for text in ("3x(A F)", "A3 F A F A2 F", "A F 2x(2x(A F))", "A@1.0 F@2.0"):
        schedule = resolve(text, tiny.num_layers)
        logits = model(tokens, schedule=schedule)
        assert logits.isfinite().all()
        if "@" not in text:
            own = fresh_model(replace(tiny, schedule=text), seed=0)
            assert own.schedule == parse(text)
            assert torch.equal(own(tokens), logits)
