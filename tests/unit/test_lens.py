"""The lens: every point of every kind beside a walk that is written out in this file."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import mixerloop
from mixerloop.config import ComputeDtype, FormChoice, RunConfig
from mixerloop.evaluation import recording
from mixerloop.interop.loading import open_subject
from mixerloop.kinds import PassDampingOptions
from mixerloop.model.decoding import start
from mixerloop.model.lens import POINTS, Address
from mixerloop.model.looped_lm import in_form
from mixerloop.model.passes import Passes, PassPlace
from mixerloop.model.passes.pass_damping import PassDamping
from mixerloop.schedule import Occurrence
from mixerloop.subject import Subject
from small_model import small_config
from stacks import FFN, HEADS, MIXERS, SIZES, STACKS, large_model, stack_config
from toys import rereading, running_mean, token_shift, toy_attention, two_experts  # noqa: F401

LOOPED = ("mixer_loop(2)", "ffn_loop(2)", "block_loop(2)", "full_loop(2)")
TOYS = {"mixer": ["running_mean", "toy_attention"], "ffn": ["two_experts", "token_shift"]}
CLOSE = 1e-9  # float64, of values up to about 10
ROUNDING = {"rtol": 0, "atol": 1e-4}  # float32
TOKENS = 7
assert_close = partial(torch.testing.assert_close, rtol=CLOSE, atol=CLOSE)
every_stack = pytest.mark.parametrize("name", STACKS)


def tokens_of(batch=2, seq=TOKENS):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(SIZES["vocab_size"], (batch, seq), generator=generator)


class Seen(dict[str, torch.Tensor]):
    """What was seen at each address."""

    def __call__(self, address, x):
        self[str(address)] = x

    def see(self, occurrence, point, x):
        self(Address(occurrence, point), x)
        return x


def config_of(name, schedule="full_loop(2)"):
    if name == "toys":
        return small_config(**SIZES, schedule=schedule, **TOYS)
    return stack_config(name, schedule)


# --- the walk once more, in plain torch: `see(point, x)` is called at every point -----------------


def plain_walk(model, tokens, schedule, see):
    """The residual before the readout, of a model without pass rules."""
    residual = model.embed(tokens)
    for occurrence in schedule:
        layer, at = model.layers[occurrence.layer], partial(see, occurrence)
        is_mixer = occurrence.sublayer == "mixer"
        norm, module, post_norm = (
            (layer.mixer_norm, layer.mixer, layer.mixer_post_norm)
            if is_mixer
            else (layer.ffn_norm, layer.ffn, layer.ffn_post_norm)
        )
        residual = at("input", residual)
        x = at("normed", residual if norm is None else normed(residual, norm))
        update = PLAIN[type(module).__name__](module, x, at)
        if post_norm is not None and layer.placement == "after_add":
            update = normed(residual + update, post_norm) - residual
        elif post_norm is not None:
            update = normed(update, post_norm)
        residual = at("output", residual + at("update", update))
    return residual


def normed(x, norm):
    size = x.unflatten(-1, (norm.num_groups, -1)).square().mean(-1, keepdim=True) + norm.eps
    return (x.unflatten(-1, (norm.num_groups, -1)) / size.sqrt()).flatten(-2) * norm.weight


def unit(x):
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def convolved(x, weight, bias=None):
    padded = F.pad(x.mT, (weight.shape[1] - 1, 0))
    return F.silu(F.conv1d(padded, weight[:, None], bias, groups=len(weight)).mT)


def turned(x, rotary):
    """Pairs of channels as complex numbers, which turn."""
    pairs = x.unflatten(-1, (2, -1)).mT if rotary.pairs == "half" else x.unflatten(-1, (-1, 2))
    rates = rotary.get_buffer("frequencies")
    angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None, None] * rates
    new = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles)
    new = torch.view_as_real(new)
    return (new.mT if rotary.pairs == "half" else new).flatten(-2)


def by_rule(see, query, key, value, **gates):
    """What is read of a memory that is written token by token."""
    query, key, value = see("query", query), see("key", key), see("value", value)
    gates = {name: see(name, gate) for name, gate in gates.items()}
    memory = torch.zeros(*key.shape[:1], *key.shape[2:], value.shape[-1], dtype=key.dtype)
    read = []
    for t in range(key.shape[1]):
        k, v = key[:, t, ..., None], value[:, t, :, None]
        if "log_decay" in gates:
            decay = gates["log_decay"][:, t].exp()
            memory = memory * (decay[..., None] if decay.ndim == 3 else decay[..., None, None])
        if "erase_key" in gates:
            v = v - gates["erase_key"][:, t, :, None] @ memory
        if "write_strength" in gates:
            v = gates["write_strength"][:, t, :, None, None] * (v - k.mT @ memory)
        memory = memory + k * v
        read.append((query[:, t, :, None] @ memory).squeeze(2))
    see("state", memory)
    return see("read", torch.stack(read, 1))


def delta_heads(m, x):
    qkv = convolved(m.qkv_proj(x), m.qkv_conv.weight)
    query, key, value = qkv.split([m.d_keys, m.d_keys, m.d_values], -1)
    query, key, value = (one.unflatten(-1, (m.num_heads, -1)) for one in (query, key, value))
    return unit(query) * m.d_key**-0.5, unit(key), value


def delta_net(m, x, see):
    write = m.largest_write * m.write_proj(x).sigmoid()
    read = by_rule(see, *delta_heads(m, x), write_strength=write)
    return m.output_proj(normed(read, m.output_norm).flatten(-2))


def kimi_delta(m, x, see):
    step = (m.decay_proj(x) + m.dt_bias).unflatten(-1, (m.num_heads, -1))
    rate = m.A_log.exp()[:, None]
    decay = -rate * F.softplus(step)
    if m.least_log_decay is not None:
        decay = m.least_log_decay * (rate * step).sigmoid()
    write = m.largest_write * m.write_proj(x).sigmoid()
    read = by_rule(see, *delta_heads(m, x), log_decay=decay, write_strength=write)
    return m.output_proj(normed(read, m.output_norm).flatten(-2) * m.gate_proj(x).sigmoid())


def gated_delta_net_2(m, x, see):
    query, key, value = delta_heads(m, x)
    erase, write, step = (
        one.unflatten(-1, (m.num_heads, -1))
        for one in (m.erase_proj(x), m.write_proj(x), m.decay_proj(x) + m.dt_bias)
    )
    gates = {
        "log_decay": -m.A_log.exp()[:, None] * F.softplus(step),
        "erase_key": m.largest_write * erase.sigmoid() * key,
    }
    read = by_rule(see, query, key, write.sigmoid() * value, **gates)
    return m.output_proj(normed(read, m.output_norm).flatten(-2) * m.gate_proj(x).sigmoid())


def gated_delta_net(m, x, see):
    qkv = convolved(m.qkv_proj(x), m.qkv_conv)
    sizes = [m.num_heads * width for width in (m.d_head, m.d_head, m.d_value)]
    query, key, value = (one.unflatten(-1, (m.num_heads, -1)) for one in qkv.split(sizes, -1))
    decay = -m.A_log.exp() * F.softplus(m.decay_proj(x) + m.dt_bias)
    write = m.largest_write * m.write_proj(x).sigmoid()
    query = unit(query) * m.d_head**-0.5
    read = by_rule(see, query, unit(key), value, log_decay=decay, write_strength=write)
    return m.output_proj(normed(read, m.output_norm).flatten(-2) * F.silu(m.gate_proj(x)))


def gated_linear_attention(m, x, see):
    d_keys = m.num_heads * m.d_key
    query, key, value = (
        one.unflatten(-1, (m.num_heads, -1))
        for one in m.qkv_proj(x).split([d_keys, d_keys, m.num_heads * m.d_value], -1)
    )
    decay = F.logsigmoid(m.decay_proj(x)).unflatten(-1, (m.num_heads, -1)) / m.decay_divisor
    read = by_rule(see, query * m.d_key**-0.5, key, value, log_decay=decay)
    return m.output_proj(normed(read, m.output_norm).flatten(-2) * F.silu(m.gate_proj(x)))


def retention(m, x, see):
    d_keys = m.num_heads * m.d_key
    query, key, value = (
        one.unflatten(-1, (m.num_heads, -1))
        for one in m.qkv_proj(x).split([d_keys, d_keys, m.num_heads * m.d_value], -1)
    )
    query, key = (turned(one, m.rotary) for one in (query, key))
    decay = m.get_buffer("log_decay").expand(*x.shape[:2], -1)
    read = by_rule(see, query * m.d_key**-0.5, key, value, log_decay=decay)
    return m.output_proj(normed(read, m.output_norm).flatten(-2) * F.silu(m.gate_proj(x)))


def mamba2(m, x, see):
    vkq = convolved(m.vkq_proj(x), m.vkq_conv.weight, m.vkq_conv.bias)
    value, key, query = vkq.split(m.sizes, -1)
    value = value.unflatten(-1, (m.num_heads, -1))
    group = torch.arange(m.num_heads) // (m.num_heads // m.num_groups)
    key, query = (one.unflatten(-1, (m.num_groups, -1))[:, :, group] for one in (key, query))
    step = F.softplus(m.step_proj(x) + m.dt_bias)
    written, decay = step[..., None] * value, -m.A_log.exp() * step
    read = by_rule(see, query, key, written, log_decay=decay) + m.skip[:, None] * value
    return m.output_proj(normed(read.flatten(-2) * F.silu(m.gate_proj(x)), m.output_norm))


def attention(m, x, see):
    batch, seq, _ = x.shape
    heads = m.qkv_proj(x).unflatten(-1, (-1, m.d_head))
    query, key, value = heads.split([m.num_heads, m.num_kv_heads, m.num_kv_heads], 2)
    if m.query_norm is not None:
        query, key = (
            normed(one.reshape(batch, seq, -1, len(norm.weight)), norm).reshape(one.shape)
            for one, norm in ((query, m.query_norm), (key, m.key_norm))
        )
    if m.rotary is not None:
        query, key = (turned(one, m.rotary) for one in (query, key))
    of_query = torch.arange(m.num_heads) // (m.num_heads // m.num_kv_heads)
    key, value = key[:, :, of_query], value[:, :, of_query]
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / m.d_head**0.5
    back = torch.arange(seq)[:, None] - torch.arange(seq)
    sees = (back >= 0) & (back < (m.window or seq))
    weights = see("weights", scores.where(sees, -torch.inf).softmax(-1))
    read = torch.einsum("bhqk,bkhd->bqhd", weights, value).flatten(2)
    return m.output_proj(read if m.gate_proj is None else read * m.gate_proj(x).sigmoid())


def swiglu(m, x, see):
    gate, up = m.gate_up_proj(x).chunk(2, -1)
    return m.down_proj(see("hidden", F.silu(gate) * up))


def experts(m, x, see):
    logits = see("router_logits", m.router(x))
    scores = logits.softmax(-1) if m.options.router == "softmax" else logits.sigmoid()
    chosen = see("experts", scores.topk(m.num_chosen, -1).indices)
    weights = scores.gather(-1, chosen)
    if m.options.normalise_weights:
        weights = weights / weights.sum(-1, keepdim=True)
    weights = see("expert_weights", weights)
    gate, up = torch.einsum("bsd,bscfd->bscf", x, m.gate_up_proj.weight[chosen]).chunk(2, -1)
    down = torch.einsum("bscf,bscdf->bscd", F.silu(gate) * up, m.down_proj.weight[chosen])
    update = (weights[..., None] * down).sum(2)
    if m.shared_gate_up_proj is not None:
        gate, up = m.shared_gate_up_proj(x).chunk(2, -1)
        update = update + m.shared_down_proj(F.silu(gate) * up)
    return update


PLAIN = {
    "GatedDeltaNet": gated_delta_net,
    "DeltaNet": delta_net,
    "KimiDelta": kimi_delta,
    "GatedDeltaNet2": gated_delta_net_2,
    "GatedLinearAttention": gated_linear_attention,
    "Retention": retention,
    "Mamba2": mamba2,
    "Attention": attention,
    "SwiGLU": swiglu,
    "Experts": experts,
}


# --- what a lens sees -----------------------------------------------------------------------------


@every_stack
@pytest.mark.parametrize("loop", LOOPED)
def test_every_point_is_that_of_the_walk_written_out(name, loop):
    model = large_model(stack_config(name, loop), form="torch", dtype=torch.float64)
    tokens, plain = tokens_of(), Seen()
    with torch.no_grad():
        plain_walk(model, tokens, model.schedule, plain.see)
        for form in ("torch", "native"):
            seen = Seen()
            in_form(model, form)(tokens, lens={"*": seen})
            assert seen.keys() <= plain.keys()
            assert form == "native" or seen.keys() == plain.keys()
            for address, x in seen.items():
                assert_close(x, plain[address], msg=address)
    assert max(float(x.abs().max()) for x in plain.values() if x.dtype == torch.float64) > 1


@every_stack
def test_a_replaced_activation_is_the_change_made_by_hand(name):
    model = large_model(config_of(name), form="torch", dtype=torch.float64)
    tokens, later = tokens_of(), [one for one in model.schedule if one.pass_index == 1]
    with torch.no_grad():
        whole = model.walk(model.embed(tokens), model.schedule).residual
        for changed in model.addresses(tuple(later)):
            if changed.point == "state":
                continue  # the next test

            def by_hand(occurrence, point, x, changed=changed):
                return other(x) if (occurrence, point) == changed else x

            wanted = plain_walk(model, tokens, model.schedule, by_hand)
            lens = {str(changed): lambda address, x: other(x)}
            got = model.walk(model.embed(tokens), model.schedule, lens=lens).residual
            assert_close(got, wanted, msg=str(changed))
            assert (got - whole).abs().max() > 1000 * CLOSE, changed


def other(x):
    """A value that an activation may have too, such as a log decay or an expert's number."""
    return x.flip(1) if x.dtype == torch.int64 else 0.5 * x.flip(0) - 0.25


@pytest.mark.parametrize("name", [name for name in MIXERS if name != "attention"])
def test_a_replaced_memory_is_read_by_the_next_token(name):
    model = large_model(stack_config(name, "mixer_loop(2)"))
    tokens = tokens_of()
    empty = start(model, batch=2).states
    changed = Occurrence(1, "mixer", 1)
    walked = model.walk(
        model.embed(tokens),
        model.schedule,
        states=empty,
        lens={f"{changed}.state": lambda address, x: torch.zeros_like(x)},
    )
    plain = model.walk(model.embed(tokens), model.schedule, states=empty)
    for occurrence, state in plain.states.items():
        memories = [one[0] for one in (state, walked.states[occurrence]) if one]
        assert not memories or torch.equal(*memories) == (occurrence != changed)
    assert not walked.states[changed][0].any()


@pytest.mark.parametrize("name", [*STACKS, "toys"])
def test_looking_changes_no_bit_and_sees_every_address_once(name):
    tokens = tokens_of(batch=3)
    for loop, form in zip(LOOPED, ("native", "torch", "definition", "native"), strict=True):
        model, seen = large_model(config_of(name, loop), form=form), []
        whole = model.walk(model.embed(tokens), model.schedule)
        walked = model.walk(
            model.embed(tokens),
            model.schedule,
            lens={"*": lambda address, x, seen=seen: seen.append((address, x.ndim))},
        )
        assert torch.equal(walked.residual, whole.residual)
        assert walked.losses == whole.losses
        known = model.addresses(model.schedule)
        assert sorted(str(address) for address, _ in seen) == sorted(map(str, known))
        for address, num_axes in seen:
            axes = model.points(address.occurrence)[address.point]
            assert axes[0] == "window"
            assert len(axes) == num_axes


def test_without_context_there_is_nothing_inside():
    model = large_model(stack_config("delta_net"))
    off, seen = Occurrence(1, "mixer", 1), []
    model(tokens_of(), context_off=[off], lens={"*.mixer.*": lambda at, x: seen.append(at)})
    assert [at.point for at in seen if at.occurrence == off] == list(POINTS)
    assert len({at.point for at in seen}) > len(POINTS)


def test_a_pass_rule_acts_before_the_input_and_before_the_output():
    config = small_config(**SIZES, schedule="full_loop(2)", rereading="stack", **FFN, **HEADS)
    bare = large_model(config, dtype=torch.float64)
    options = PassDampingOptions(unit="stack", share=0.5)
    passes = Passes.round_unit("stack", bare.schedule)
    model = bare.with_rules(PassDamping(options, passes, PassPlace(bare.final_norm)))
    embedded, seen = model.embed(tokens_of()), Seen()
    model.walk(embedded, model.schedule, lens={"*put": seen, "*.update": seen})
    first, last = "layer0.mixer.pass1", "layer1.ffn.pass1"
    before = seen["layer1.ffn.pass0.output"]
    reread = before + model.get_parameter("rereading.weight") * embedded
    assert_close(seen[f"{first}.input"], reread)
    whole = seen[f"{last}.input"] + seen[f"{last}.update"]
    assert_close(seen[f"{last}.output"], before + 0.5 * (whole - before))


# --- recordings -----------------------------------------------------------------------------------


def subject_of(
    name: str,
    *,
    form: FormChoice = "auto",
    compute_dtype: ComputeDtype = "float32",
    folder: Path = Path(),
) -> Subject:
    config = config_of(name)
    model = large_model(config, form=form)
    return Subject(
        folder=folder,
        fingerprint="0",
        results=None,
        model=model,
        config=RunConfig(model=config),
        schedule=model.schedule,
        compute_dtype=compute_dtype,
    )


def test_a_recording_in_slices_is_the_whole(monkeypatch):
    subject, tokens = subject_of("hybrid"), tokens_of(batch=5)
    seen, rows = Seen(), []
    with torch.no_grad():
        subject.model(tokens, lens={"*": seen})
    whole = mixerloop.record(subject, tokens.numpy(), "*")
    monkeypatch.setattr(recording, "SLICE_TOKENS", 2 * TOKENS + 1)
    subject.model.layers[0].mixer.register_forward_pre_hook(
        lambda module, given: rows.append(len(given[0]))
    )
    parts = mixerloop.record(subject, tokens.tolist(), "*")
    assert rows == [2, 2, 2, 2, 1, 1]  # two passes of each slice
    assert list(whole) == list(parts) == list(seen)
    for address, array in whole.items():
        np.testing.assert_array_equal(array.values, seen[address].numpy())
        np.testing.assert_allclose(parts[address].values, array.values, **ROUNDING)
        assert array.values.dtype == parts[address].values.dtype
    assert whole.schedule == parts.schedule == "2x(2x(A F))"


def test_a_recording_says_what_it_has():
    recorded = mixerloop.record(subject_of("experts"), tokens_of(4), "layer0.ffn.pass1.[!on]*")
    assert repr(recorded) == "\n".join(
        f"layer0.ffn.pass1.{line}"
        for line in (
            "input: window 4, token 7, d_model 16, float32",
            "router_logits: window 4, token 7, expert 4, float32",
            "experts: window 4, token 7, choice 2, int64",
            "expert_weights: window 4, token 7, choice 2, float32",
            "update: window 4, token 7, d_model 16, float32",
        )
    )
    array = recorded["layer0.ffn.pass1.update"]
    assert array.sizes == {"window": 4, "token": 7, "d_model": 16}
    assert np.asarray(array).shape == (4, 7, 16)
    assert len(recorded) == 5


def test_only_the_schedule_up_to_the_last_address_is_run():
    subject, calls = subject_of("attention"), []
    for layer in subject.model.layers:
        layer.register_forward_pre_hook(lambda *given: calls.append(1))
    mixerloop.record(subject, tokens_of(), ["layer0.*.pass1.update", "layer1.mixer.pass0.weights"])
    assert len(calls) == 6


@pytest.mark.parametrize(
    ("patterns", "opened"), [("*.state", "native"), (["*.log_decay", "*.state"], "torch")]
)
def test_a_point_that_the_native_form_lacks_opens_the_torch_form(patterns, opened):
    subject = subject_of("gated_delta_net", form="native")
    recorded = mixerloop.record(subject, tokens_of(), patterns)
    assert recorded.provenance.forms["gated_delta_mixing"] == opened
    assert subject.forms()["gated_delta_mixing"] == "native"
    plain = Seen()
    with torch.no_grad():
        plain_walk(subject.model, tokens_of(), subject.schedule, plain.see)
    assert len(recorded) == (8 if opened == "torch" else 4)
    for address, array in recorded.items():
        np.testing.assert_allclose(array.values, plain[address].numpy(), **ROUNDING)


def test_another_form_has_the_same_weights():
    model = large_model(stack_config("hybrid"), form="native")
    one = in_form(model, "torch")
    assert (model.form, one.form) == ("native", "torch")
    for key, weight in model.named_parameters():
        assert one.get_parameter(key) is weight


def test_less_of_an_activation_may_be_kept():
    subject, tokens = subject_of("attention"), tokens_of()
    pattern = "layer0.mixer.pass0.weights"
    whole = mixerloop.record(subject, tokens, pattern)[pattern]
    assert whole.axes == ("window", "head", "query", "key")
    last = mixerloop.record(subject, tokens, pattern, reduce=lambda x: x[:, :, -1:])[pattern]
    assert last.sizes == {"window": 2, "head": 2, "query": 1, "key": TOKENS}
    np.testing.assert_array_equal(last.values, whole.values[:, :, -1:])
    means = mixerloop.record(subject, tokens, pattern, reduce=lambda x: x.mean((1, 2)))[pattern]
    assert means.sizes == {"window": 2, "axis1": TOKENS}
    np.testing.assert_allclose(means.values, whole.values.mean((1, 2)), **ROUNDING)


def test_a_narrow_recording_is_of_float32_and_says_so():
    recorded = mixerloop.record(
        subject_of("gated_delta_net", compute_dtype="bfloat16"), tokens_of(), "layer1.ffn.*"
    )
    assert {str(array.values.dtype) for array in recorded.values()} == {"float32"}
    assert recorded.provenance.compute_dtype == "bfloat16"


def test_a_text_is_one_window(text_run):
    subject = open_subject(text_run, keep=False)
    recorded = mixerloop.record(subject, "a tale", "*.output", reduce=lambda x: x.norm(dim=-1))
    num_tokens = len(subject.tokenizer().encode("a tale"))
    assert {array.values.shape for array in recorded.values()} == {(1, num_tokens)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patterns": "layer0.mixer.*.log_decy"}, r"near: layer0\.mixer\.pass\d\.log_decay"),
        ({"patterns": ["*.update", "layer7.*"]}, r"'layer7\.\*' matches no address of this walk"),
        ({"patterns": []}, "name an address"),
        (
            {"tokens": np.array([[0.5]])},
            r"must be whole numbers \[window, token\], got float64 of \(1, 1\)",
        ),
        ({"tokens": torch.ones(3, dtype=torch.int64)}, r"\[window, token\], got int64 of \(3,\)"),
        ({"tokens": [[12]]}, "token id 12 is outside the vocabulary of 12"),
        ({"tokens": "text"}, "has no tokenizer"),
        ({"reduce": torch.sum}, r"update must stay a tensor whose first axis is 2 windows"),
        ({"reduce": lambda x: x.tolist()}, "must stay a tensor"),
    ],
)
def test_what_cannot_be_recorded_is_named(change, message, tmp_path):
    given = {"tokens": tokens_of(), "patterns": "*.update"} | change
    with pytest.raises(ValueError, match=message):
        mixerloop.record(subject_of("gated_delta_net", folder=tmp_path), **given)
