"""Layers against other people's code with the same weights: outputs, and gradients of everything.

Their layers run on views of our parameters, so that both gradients arrive at the same tensors.
"""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

import needs
from mixerloop.config import kind_options
from mixerloop.kinds import KINDS
from mixerloop.model.sublayer import Place

CLOSE = 1e-5  # of the largest value of a tensor, in float32
D_MODEL, SEQ, EPS = 24, 19, 1e-5
HEADS = {"num_heads": 4, "d_head": 6}


def config_of(name):
    """A config class of `transformers`, which is optional."""
    return getattr(needs.module("transformers"), name)


def made(kind, **options):
    """A sublayer with weights of order one."""
    place = Place(layer=0, num_layers=1, d_model=D_MODEL, norm_eps=EPS, form="torch")
    sublayer = KINDS[kind].load()(kind_options(kind, options), place)
    generator = torch.Generator().manual_seed(0)
    for module in sublayer.modules():
        for name, buffer in module.named_buffers(recurse=False):
            buffer.copy_(torch.from_numpy(module.draw(name, None)))
    for parameter in sublayer.parameters():
        scale = 0.5 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
        parameter.data = scale * torch.randn(parameter.shape, generator=generator)
    return sublayer


def check(ours, theirs):
    """`theirs` is a function of the input that reads the parameters of `ours`."""
    x = torch.randn(2, SEQ, D_MODEL, requires_grad=True)
    named = {"x": x, **dict(ours.named_parameters())}
    outputs = ours(x).update, theirs(x)
    weight = torch.randn_like(outputs[0])
    got, wanted = (torch.autograd.grad(output, list(named.values()), weight) for output in outputs)
    for name, one, other in zip(
        ("output", *named), (outputs[0], *got), (outputs[1], *wanted), strict=True
    ):
        one, other = one.detach(), other.detach()
        size = float(other.abs().max())
        assert size > 1e-3, name
        assert float((one - other).abs().max()) < CLOSE * size, name


def calling(module, weights, **arguments):
    """A function of the input that runs a layer with these weights."""
    assert weights.keys() == {name for name, _ in module.named_parameters()}
    for name, parameter in module.named_parameters():
        assert weights[name].shape == parameter.shape, name

    def run(x):
        output = functional_call(module, weights, args=(x,), kwargs=arguments)
        return output[0] if isinstance(output, tuple) else output

    return run


def split(weight, *sizes):
    return weight.split(list(sizes))


# --- attention ------------------------------------------------------------------------------------


def attention_weights(ours):
    inner, kv = ours.num_heads * ours.d_head, ours.num_kv_heads * ours.d_head
    query, key, value = split(ours.qkv_proj.weight, inner, kv, kv)
    return {
        "q_proj.weight": query,
        "k_proj.weight": key,
        "v_proj.weight": value,
        "o_proj.weight": ours.output_proj.weight,
    }


def attention_config(cls, kv_heads):
    return cls(
        hidden_size=D_MODEL,
        num_attention_heads=HEADS["num_heads"],
        num_key_value_heads=kv_heads,
        head_dim=HEADS["d_head"],
        rms_norm_eps=EPS,
        attn_implementation="sdpa",
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_is_llamas(kv_heads):
    theirs = needs.module("transformers.models.llama.modeling_llama")
    config = attention_config(config_of("LlamaConfig"), kv_heads)
    ours = made("attention", **HEADS, num_kv_heads=kv_heads, rotary_base=500.0)
    turns = theirs.LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(SEQ)[None])
    module = theirs.LlamaAttention(config, layer_idx=0)
    run = calling(module, attention_weights(ours), position_embeddings=turns, attention_mask=None)
    check(ours, run)


def test_attention_with_norms_is_qwen3s():
    theirs = needs.module("transformers.models.qwen3.modeling_qwen3")
    config = attention_config(config_of("Qwen3Config"), 2)
    ours = made("attention", **HEADS, num_kv_heads=2, rotary_base=500.0, query_key_norm="head")
    turns = theirs.Qwen3RotaryEmbedding(config)(torch.zeros(1), torch.arange(SEQ)[None])
    weights = attention_weights(ours) | {
        "q_norm.weight": ours.query_norm.weight,
        "k_norm.weight": ours.key_norm.weight,
    }
    module = theirs.Qwen3Attention(config, layer_idx=0)
    check(ours, calling(module, weights, position_embeddings=turns, attention_mask=None))


def test_interleaved_positions_are_halves_in_another_order():
    halves = made("attention", **HEADS)
    neighbours = made("attention", **HEADS, rotary="interleaved")
    order = (
        torch.arange(6).view(2, 3).T.flatten()
    )  # channel 2i of neighbours is channel i of halves
    queries_and_keys = torch.cat([head * 6 + order for head in range(8)])
    rows = torch.cat([queries_and_keys, torch.arange(48, 72)])
    neighbours.qkv_proj.weight.data = halves.qkv_proj.weight.data[rows]
    neighbours.output_proj.weight.data = halves.output_proj.weight.data
    x = torch.randn(2, SEQ, D_MODEL)
    torch.testing.assert_close(neighbours(x).update, halves(x).update)


def test_the_window_and_the_gate_are_what_they_say():
    """Against scores that are masked, and read, by hand."""
    ours = made("attention", **HEADS, rotary="none", window=5, output_gate=True)

    def by_hand(x):
        query, key, value = F.linear(x, ours.qkv_proj.weight).unflatten(-1, (12, 6)).chunk(3, dim=2)
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key) * 6**-0.5
        distance = torch.arange(SEQ)[:, None] - torch.arange(SEQ)
        scores = scores.masked_fill((distance < 0) | (distance >= 5), -torch.inf)
        read = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), value).flatten(2)
        gated = read * F.linear(x, ours.gate_proj.weight).sigmoid()
        return F.linear(gated, ours.output_proj.weight)

    check(ours, by_hand)


# --- Mamba2 and Kimi delta ------------------------------------------------------------------------


def test_mamba2_is_that_of_transformers():
    theirs = needs.module("transformers.models.mamba2.modeling_mamba2")
    config = config_of("Mamba2Config")(
        hidden_size=D_MODEL,
        num_heads=6,
        head_dim=8,
        state_size=5,
        n_groups=2,
        expand=2,
        chunk_size=8,
        layer_norm_epsilon=EPS,
        num_hidden_layers=1,
    )
    ours = made("mamba2", num_heads=6, d_head=8, d_state=5, num_groups=2)
    weights = {
        "dt_bias": ours.dt_bias,
        "A_log": ours.A_log,
        "D": ours.skip,
        "conv1d.weight": ours.vkq_conv.weight[:, None],
        "conv1d.bias": ours.vkq_conv.bias,
        "in_proj.weight": torch.cat(
            [ours.gate_proj.weight, ours.vkq_proj.weight, ours.step_proj.weight]
        ),
        "norm.weight": ours.output_norm.weight,
        "out_proj.weight": ours.output_proj.weight,
    }
    check(ours, calling(theirs.Mamba2Mixer(config, layer_idx=0), weights))


def test_kimi_delta_is_that_of_transformers(monkeypatch):
    theirs = needs.module("transformers.models.kimi_linear.modeling_kimi_linear")
    rule = inspect.unwrap(theirs.chunk_kimi_delta_attention)  # not the kernel it may hide
    monkeypatch.setattr(theirs, "chunk_kimi_delta_attention", rule)
    config = config_of("KimiLinearConfig")(
        hidden_size=D_MODEL,
        linear_num_heads=4,
        linear_head_dim=6,
        rms_norm_eps=EPS,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        mlp_layer_types=["dense"],
    )
    ours = made("kimi_delta", **HEADS)
    query, key, value = split(ours.qkv_proj.weight, 24, 24, 24)
    weights = {
        "q_proj.weight": query,
        "k_proj.weight": key,
        "v_proj.weight": value,
        "conv1d.weight": ours.qkv_conv.weight[:, None],
        "forget_gate.dt_bias": ours.dt_bias,
        "forget_gate.A_log": ours.A_log.view(1, 1, -1, 1),
        "forget_gate.f_a_proj.weight": ours.decay_proj[0].weight,
        "forget_gate.f_b_proj.weight": ours.decay_proj[1].weight,
        "b_proj.weight": ours.write_proj.weight,
        "g_a_proj.weight": ours.gate_proj[0].weight,
        "g_b_proj.weight": ours.gate_proj[1].weight,
        "o_norm.weight": ours.output_norm.weight,
        "o_proj.weight": ours.output_proj.weight,
    }
    check(ours, calling(theirs.KimiLinearDeltaAttention(config, layer_idx=0), weights))


# --- experts --------------------------------------------------------------------------------------

EXPERTS = {"d_ffn": 16, "num_experts": 6, "num_chosen": 2, "balance": 0.0, "router_z": 0.0}


@pytest.mark.parametrize("kind", ["mixtral", "olmoe"])
def test_experts_are_those_of_transformers(kind):
    theirs = needs.module(f"transformers.models.{kind}.modeling_{kind}")
    if kind == "mixtral":
        config = config_of("MixtralConfig")(num_local_experts=6)
        block = theirs.MixtralSparseMoeBlock
    else:
        config = config_of("OlmoeConfig")(num_experts=6, norm_topk_prob=False)
        block = theirs.OlmoeSparseMoeBlock
    config.hidden_size, config.intermediate_size, config.num_experts_per_tok = D_MODEL, 8, 2
    config._experts_implementation = "eager"
    ours = made("experts", **EXPERTS, normalise_weights=kind == "mixtral")
    weights = {
        "gate.weight": ours.router.weight,
        "experts.gate_up_proj": ours.gate_up_proj.weight,
        "experts.down_proj": ours.down_proj.weight,
    }
    check(ours, calling(block(config), weights))


def test_the_balance_loss_is_that_of_mixtral():
    theirs = needs.module("transformers.models.mixtral.modeling_mixtral")
    ours = made("experts", **(EXPERTS | {"balance": 0.25}))
    x = torch.randn(2, SEQ, D_MODEL)
    logits = ours.router(x).flatten(0, 1)
    wanted = theirs.load_balancing_loss_func((logits,), num_experts=6, top_k=2) / 2
    loss = ours(x).losses["balance"]
    torch.testing.assert_close(loss.value(loss.statistic), 0.25 * wanted)


# --- the rules of fla-core, with the layers around them composed by hand --------------------------


def convolved(x, ours, num_heads):
    """Queries, keys and values: projected, convolved, SiLU, by head; heads of 6 throughout."""
    weight = ours.qkv_conv.weight
    qkv = F.linear(x, ours.qkv_proj.weight).mT
    padded = F.pad(qkv, (weight.shape[1] - 1, 0))
    qkv = F.silu(F.conv1d(padded, weight[:, None], groups=len(weight))).mT
    return qkv.unflatten(-1, (3 * num_heads, -1)).chunk(3, dim=2)


def of_length_one(x):
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def normed(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def plain(x, ours, d_value):
    """Queries, keys and values of four heads; those of values are `d_value` wide."""
    sizes = [24, 24, 4 * d_value]
    return [
        part.unflatten(-1, (4, -1))
        for part in F.linear(x, ours.qkv_proj.weight).split(sizes, dim=-1)
    ]


@pytest.mark.parametrize("negative_eigenvalues", [False, True])
def test_delta_net_is_the_rule_of_fla(negative_eigenvalues):
    rule = needs.module("fla.ops.delta_rule.naive").delta_rule_recurrence
    ours = made("delta_net", **HEADS, negative_eigenvalues=negative_eigenvalues)

    def by_hand(x):
        query, key, value = convolved(x, ours, 4)
        write = F.linear(x, ours.write_proj.weight).sigmoid() * (1 + negative_eigenvalues)
        read, _ = rule(
            *(
                part.transpose(1, 2)
                for part in (of_length_one(query), of_length_one(key), value, write)
            )
        )
        mixed = normed(read.transpose(1, 2), ours.output_norm.weight).flatten(2)
        return F.linear(mixed, ours.output_proj.weight)

    check(ours, by_hand)


def test_gated_delta_net_2_is_the_rule_of_fla():
    rule = needs.module("fla.ops.gdn2.naive").naive_recurrent_gdn2
    ours = made("gated_delta_net_2", **HEADS, negative_eigenvalues=True)

    def by_hand(x):
        query, key, value = convolved(x, ours, 4)
        erase = 2 * F.linear(x, ours.erase_proj.weight).sigmoid().unflatten(-1, (4, 6))
        write = F.linear(x, ours.write_proj.weight).sigmoid().unflatten(-1, (4, 6))
        step = F.softplus(ours.decay_proj(x) + ours.dt_bias).unflatten(-1, (4, 6))
        decay = -ours.A_log.exp()[:, None] * step
        read, _ = rule(of_length_one(query), of_length_one(key), value, decay, erase, write)
        gate = ours.gate_proj(x).unflatten(-1, (4, 6)).sigmoid()
        mixed = (normed(read, ours.output_norm.weight) * gate).flatten(2)
        return F.linear(mixed, ours.output_proj.weight)

    check(ours, by_hand)


def test_gated_linear_attention_is_the_rule_of_fla():
    rule = needs.module("fla.ops.gla.naive").naive_recurrent_gla
    ours = made("gated_linear_attention", **HEADS, decay_rank=5)

    def by_hand(x):
        query, key, value = plain(x, ours, 12)
        decay = F.logsigmoid(ours.decay_proj(x)).unflatten(-1, (4, 6)) / 16
        read, _ = rule(query, key, value, decay)
        gate = F.silu(F.linear(x, ours.gate_proj.weight)).unflatten(-1, (4, 12))
        mixed = (normed(read, ours.output_norm.weight) * gate).flatten(2)
        return F.linear(mixed, ours.output_proj.weight)

    check(ours, by_hand)


@pytest.mark.parametrize("norm_per_group", [False, True])
def test_mamba2_is_the_rule_and_the_norm_of_fla(norm_per_group):
    """The layer of fla normalises each group; that of transformers, all heads."""
    rule = needs.module("fla.ops.simple_gla.naive").naive_recurrent_simple_gla
    norm = needs.module("fla.modules.layernorm_gated").rms_norm_ref
    ours = made(
        "mamba2", **HEADS, d_state=5, num_groups=2, norm_per_group=norm_per_group
    )  # two heads of width 6 in a group

    def by_hand(x):
        padded = F.pad(F.linear(x, ours.vkq_proj.weight).mT, (3, 0))
        weight = ours.vkq_conv.weight[:, None]
        convolved = F.silu(F.conv1d(padded, weight, ours.vkq_conv.bias, groups=len(weight))).mT
        value, key, query = convolved.split([24, 10, 10], dim=-1)
        value = value.unflatten(-1, (4, 6))
        key, query = (part.unflatten(-1, (2, 5))[:, :, [0, 0, 1, 1]] for part in (key, query))
        step = F.softplus(F.linear(x, ours.step_proj.weight) + ours.dt_bias)
        decay = -ours.A_log.exp() * step
        read, _ = rule(query, key, step[..., None] * value, decay, scale=1.0)
        skipped = (read + ours.skip[:, None] * value).flatten(2)
        gate = F.linear(x, ours.gate_proj.weight)
        options = {"group_size": 12 if norm_per_group else None, "norm_before_gate": False}
        mixed = norm(skipped, ours.output_norm.weight, None, gate, eps=EPS, **options)
        return F.linear(mixed, ours.output_proj.weight)

    check(ours, by_hand)


def test_retention_is_the_rule_of_fla():
    rule = needs.module("fla.ops.retention.naive").naive_retention
    ours = made("retention", **HEADS, rotary_base=50.0)

    def turned(x):
        angles = torch.arange(SEQ)[:, None] * 50.0 ** (-torch.arange(3) / 3)
        pairs = torch.complex(*x.chunk(2, dim=-1)) * torch.polar(torch.ones(()), angles)[:, None]
        return torch.cat([pairs.real, pairs.imag], dim=-1)

    def by_hand(x):
        query, key, value = plain(x, ours, 12)
        read = rule(*(part.transpose(1, 2) for part in (turned(query), turned(key), value)))
        gate = F.silu(F.linear(x, ours.gate_proj.weight)).unflatten(-1, (4, 12))
        mixed = (normed(read.transpose(1, 2), ours.output_norm.weight) * gate).flatten(2)
        return F.linear(mixed, ours.output_proj.weight)

    check(ours, by_hand)


def test_bounded_decays_of_kimi_delta_are_those_of_fla():
    gate = needs.module("fla.ops.kda.gate").naive_kda_lowerbound_gate
    ours = made("kimi_delta", **HEADS, least_log_decay=-5.0)
    x = torch.randn(2, SEQ, D_MODEL)
    steps = ours.decay_proj(x).unflatten(-1, (4, 6))
    wanted = gate(steps, ours.A_log, ours.dt_bias, lower_bound=-5.0)
    torch.testing.assert_close(ours.prepare(x, None).rule.log_decay, wanted)
