"""A checkpoint written by flash-linear-attention itself, against its own naive rule."""

import pytest
import torch
import torch.nn.functional as F

import needs
from mixerloop.interop.folders import read_exported

gated_deltanet = needs.module("fla.models.gated_deltanet")
naive = needs.module("fla.ops.gated_delta_rule.naive")

AGREE = 1e-5


@pytest.fixture
def theirs():
    config = gated_deltanet.GatedDeltaNetConfig(
        hidden_size=24,
        expand_v=1.0,
        head_dim=8,
        num_heads=2,
        num_hidden_layers=3,
        intermediate_size=40,
        vocab_size=50,
        norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return gated_deltanet.GatedDeltaNetForCausalLM(config)


def conv(x, module):
    """Each channel's own filter over the tokens before, and SiLU."""
    width = module.weight.shape[-1]
    padded = F.pad(x.transpose(1, 2), (width - 1, 0))
    return F.silu(F.conv1d(padded, module.weight, groups=x.shape[-1])).transpose(1, 2)


def mixed(x, mixer):
    """Their layer composed by hand from their parameters and their naive rule."""
    heads = lambda y: y.unflatten(-1, (mixer.num_heads, -1))  # noqa: E731
    query, key, value = (
        heads(conv(getattr(mixer, f"{name}_proj")(x), getattr(mixer, f"{name}_conv1d")))
        for name in "qkv"
    )
    unit = lambda y: y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6)  # noqa: E731
    decay = -mixer.A_log.exp() * F.softplus(mixer.a_proj(x) + mixer.dt_bias)
    output, _ = naive.naive_recurrent_gated_delta_rule(
        unit(query), unit(key), value, mixer.b_proj(x).sigmoid(), decay
    )
    normed = F.rms_norm(output, output.shape[-1:], mixer.o_norm.weight, 1e-5)
    return mixer.o_proj((normed * F.silu(heads(mixer.g_proj(x)))).flatten(-2))


def logits_of(model, tokens):
    norm = lambda x, module: F.rms_norm(x, x.shape[-1:], module.weight, 1e-5)  # noqa: E731
    residual = model.model.embeddings(tokens)
    for layer in model.model.layers:
        residual = residual + mixed(norm(residual, layer.attn_norm), layer.attn)
        x = norm(residual, layer.mlp_norm)
        mlp = layer.mlp
        residual = residual + mlp.down_proj(F.silu(mlp.gate_proj(x)) * mlp.up_proj(x))
    return norm(residual, model.model.norm) @ model.model.embeddings.weight.T


def test_their_folder_gives_the_logits_of_their_rule(theirs, tmp_path):
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)  # so that every part of the model shows in the logits
    theirs.save_pretrained(tmp_path / "gdn")
    model, config = read_exported(tmp_path / "gdn")
    assert config.model.schedule == "no_loop"
    tokens = torch.randint(50, (2, 37), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, got = logits_of(theirs, tokens), model(tokens)
    assert expected.std() > 0.1
    torch.testing.assert_close(got, expected, rtol=0, atol=AGREE)
