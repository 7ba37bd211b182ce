"""The same model in plain `transformers`: a Llama with the weights of a model with attention."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from mixerloop.benchmarking.measure import check_close
from mixerloop.config import ComputeDtype
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.model.mixers.attention import Attention
from mixerloop.ops.precision import compute_in
from mixerloop.training.loss import Loss
from mixerloop.training.optimizer import make_optimizer
from mixerloop.training.step import clip

AGREE = 1e-4  # of the loss, in float32


def is_installed() -> bool:
    """Whether `transformers` can be imported."""
    return find_spec("transformers") is not None


def llama_step(
    model: LoopedLM,
    tokens: Tensor,
    labels: Tensor,
    *,
    compute_dtype: ComputeDtype,
    clip_norm: float,
    peak_lr: float,
    weight_decay: float,
) -> Callable[[], None]:
    """A training step of a Llama that computes what `model` does: loss, clipping, AdamW."""
    llama = _llama_of(model)
    with torch.no_grad():
        ours = Loss(model)(tokens, labels).total / labels.numel()
        theirs = llama(input_ids=tokens, labels=labels, shift_labels=labels).loss
    check_close("the loss of transformers", theirs[None], ours[None], tolerance=AGREE)
    optimizer = make_optimizer(llama, peak_lr=peak_lr, weight_decay=weight_decay)
    parameters = list(llama.parameters())

    def step() -> None:
        optimizer.zero_grad()
        with compute_in(compute_dtype, "cpu"):
            loss = llama(input_ids=tokens, labels=labels, shift_labels=labels).loss
        loss.backward()
        clip(parameters, clip_norm)
        optimizer.step()

    return step


def _llama_of(model: LoopedLM) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = model.config
    options, d_ffn = config.options["attention"], config.options["swiglu"].d_ffn
    llama = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=config.d_model,
            intermediate_size=d_ffn,
            num_hidden_layers=config.num_layers,
            num_attention_heads=options.num_heads,
            num_key_value_heads=options.kv_heads,
            head_dim=options.d_head,
            vocab_size=config.vocab_size,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": options.rotary_base},
            tie_word_embeddings=True,
            use_cache=False,
        )
    )
    weights = {"model.embed_tokens.weight": model.embedding.weight}
    weights["model.norm.weight"] = model.final_norm.weight
    weights["lm_head.weight"] = model.embedding.weight
    for number, layer in enumerate(model.layers):
        weights |= {f"model.layers.{number}.{name}": one for name, one in _of_layer(layer)}
    llama.load_state_dict({name: one.detach().clone() for name, one in weights.items()})
    return llama.train()


def _of_layer(layer: Any) -> list[tuple[str, Tensor]]:
    mixer, ffn = layer.mixer, layer.ffn
    assert isinstance(mixer, Attention)
    inner, kv = mixer.num_heads * mixer.d_head, mixer.num_kv_heads * mixer.d_head
    query, key, value = mixer.qkv_proj.weight.split([inner, kv, kv])
    gate, up = ffn.gate_up_proj.weight.chunk(2)
    return [
        ("input_layernorm.weight", layer.mixer_norm.weight),
        ("self_attn.q_proj.weight", query),
        ("self_attn.k_proj.weight", key),
        ("self_attn.v_proj.weight", value),
        ("self_attn.o_proj.weight", mixer.output_proj.weight),
        ("post_attention_layernorm.weight", layer.ffn_norm.weight),
        ("mlp.gate_proj.weight", gate),
        ("mlp.up_proj.weight", up),
        ("mlp.down_proj.weight", ffn.down_proj.weight),
    ]
