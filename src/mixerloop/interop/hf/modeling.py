"""Looped models for `transformers`, with the module names of the released checkpoints.

`model.model.layers[i].mixer` is called once for each occurrence, so hooks on it see every pass.
The cache is a class of transformers. It has one layer for each mixer occurrence, and does not grow.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache, LinearAttentionLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from mixerloop.config import Form, ModelConfig
from mixerloop.draws import Draws
from mixerloop.interop.hf.configuration import (
    FFNLoopConfig,
    FullLoopConfig,
    LoopedConfig,
    MixerLoopConfig,
    NoLoopConfig,
    ScheduleConfig,
)
from mixerloop.interop.released_config import FFN, RESIDUAL, released_mixer
from mixerloop.model.decay_draws import draw_log_rates, draw_step_biases
from mixerloop.model.lens import Look
from mixerloop.model.looped_lm import check_ids
from mixerloop.model.passes import Passes
from mixerloop.model.sublayer import Losses, Output, State
from mixerloop.model.walk import walk
from mixerloop.ops.gated_delta_mixing import MixingWeights, Projected, gated_delta_mixing
from mixerloop.ops.gated_delta_rule import choose_form, form_of_rule
from mixerloop.ops.rule_call import check_tensor
from mixerloop.schedule import Occurrence, Sublayer

LinearState = tuple[Tensor, Tensor]
"""The mixer's memory, and the last tokens, which the short convolution needs."""
OF_GENERATE = {"next_sequence_length", "is_first_iteration"}
"""Arguments by which `generate` tells a model its position; our states need none of them."""


class Filter(nn.Conv1d):
    """A short convolution's weights; the mixer calls it, so that hooks which load weights run."""

    def forward(self) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The weights of the filter; the mixer computes the convolution itself."""
        return self.weight


class HeadNorm(nn.RMSNorm):
    """The weights of a norm inside the mixer; the mixer calls it for the reason of `Filter`."""

    def forward(self) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The weights of the norm; the mixer computes the norm itself."""
        return self.weight


class LoopedMixer(nn.Module):
    """The Gated DeltaNet mixer, a matrix and a filter for each of query, key and value."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        options = released_mixer(config)
        width, keys = config.d_model, options.num_heads * options.d_head
        inner = options.num_heads * options.value_width
        linear = partial(nn.Linear, bias=False)
        self.norm_eps, self.largest_write = config.norm_eps, options.largest_write
        self.q_proj, self.k_proj, self.v_proj = (
            linear(width, size) for size in (keys, keys, inner)
        )
        self.a_proj, self.b_proj = (linear(width, options.num_heads) for _ in range(2))
        self.g_proj, self.o_proj = linear(width, inner), linear(inner, width)
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (
            Filter(size, size, options.conv_width, groups=size, bias=False)
            for size in (keys, keys, inner)
        )
        self.o_norm = HeadNorm(options.value_width, eps=config.norm_eps)
        self.A_log = nn.Parameter(torch.zeros(options.num_heads))
        self.dt_bias = nn.Parameter(torch.zeros(options.num_heads))

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        state: LinearState | None = None,
    ) -> tuple[Tensor, LinearState]:
        """The update to the residual, and the state after the last token.

        A token whose `attention_mask` is zero writes nothing.
        """
        x = hidden_states
        if attention_mask is not None:
            x = x * attention_mask[..., None].to(x.dtype)
        wide = torch.promote_types(x.dtype, torch.float32)
        filters = [self.q_conv1d(), self.k_conv1d(), self.v_conv1d()]
        weights = MixingWeights(
            conv=torch.cat(filters)[:, 0].to(wide),
            A_log=self.A_log.to(wide),
            dt_bias=self.dt_bias.to(wide),
            norm=self.o_norm().to(wide),
        )
        memory, history = (None, None) if state is None else state
        mixed, memory, history = gated_delta_mixing(
            Projected(
                qkv=torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], dim=-1),
                gate=self.g_proj(x),
                decay=self.a_proj(x),
                write=self.b_proj(x),
            ),
            weights,
            norm_eps=self.norm_eps,
            largest_write=self.largest_write,
            form=_form(x.device.type, weights.d_key),
            memory=memory,
            conv_history=history,
        )
        return self.o_proj(mixed.to(x.dtype)), (memory, history)


class LoopedFFN(nn.Module):
    """The SwiGLU ffn, with separate matrices for gate and up."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d_ffn = config.options[FFN].d_ffn
        self.gate_proj = nn.Linear(config.d_model, d_ffn, bias=False)
        self.up_proj = nn.Linear(config.d_model, d_ffn, bias=False)
        self.down_proj = nn.Linear(d_ffn, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The update to the residual."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LoopedLayer(nn.Module):
    """One layer: a mixer and an ffn, each with a norm before it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self._add_parts(config)

    def _add_parts(self, config: ModelConfig) -> None:
        """Add the parts that the authors and flash-linear-attention name differently."""
        self.mixer = LoopedMixer(config)
        self.ffn_norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.ffn = LoopedFFN(config)

    def forward(
        self,
        residual: Tensor,
        sublayer: Sublayer,
        attention_mask: Tensor | None = None,
        state: State | None = None,
    ) -> Output:
        """Run a sublayer on the normalised residual.

        With the layers on several devices, `accelerate` moves the arguments of this call to the
        device of the layer.
        """
        if sublayer == "ffn":
            return Output(self.ffn(self.ffn_norm(residual)))
        x = self.attn_norm(residual)
        return Output(*self.mixer(x, attention_mask=attention_mask, state=state))


class NoLoopLayer(LoopedLayer):
    """A layer whose parts have the names of flash-linear-attention."""

    def _add_parts(self, config: ModelConfig) -> None:
        self.attn = LoopedMixer(config)
        self.mlp_norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.mlp = LoopedFFN(config)

    @property
    def mixer(self) -> LoopedMixer:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The mixer, which is stored as `attn`."""
        return self.attn

    @property
    def ffn_norm(self) -> nn.RMSNorm:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The norm before the ffn, which is stored as `mlp_norm`."""
        return self.mlp_norm

    @property
    def ffn(self) -> LoopedFFN:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The ffn, which is stored as `mlp`."""
        return self.mlp


class LoopedPreTrainedModel(PreTrainedModel):
    """Loading and initialisation, which models with and without a head share."""

    config_class = LoopedConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LoopedLayer", "NoLoopLayer"]  # noqa: RUF012
    _keep_in_fp32_modules_strict = ["A_log", "dt_bias"]  # noqa: RUF012
    _is_stateful = True

    @classmethod
    def from_pretrained(
        cls,
        *args: Any,
        output_loading_info: bool = False,
        use_safetensors: bool = True,
        **options: Any,
    ) -> Any:
        """Load as transformers does, but raise if weights do not fit, where it only warns.

        Weights in a pickle are never loaded.
        """
        if not use_safetensors:
            raise ValueError("use_safetensors=False: a pickle can run code; convert to safetensors")
        load: Any = super().from_pretrained
        model, loading_info = load(*args, output_loading_info=True, use_safetensors=True, **options)
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if names := sorted(map(str, loading_info[kind])):
                has_table = kind == "unexpected_keys" and any("residual" in name for name in names)
                hint = "; its config needs use_residual or pass_residual" * has_table
                raise ValueError(f"{kind.replace('_', ' ')}: {', '.join(names)}{hint}")
        return (model, loading_info) if output_loading_info else model

    def _init_weights(self, module: nn.Module) -> None:
        """Draw fresh weights. Studies do not use these: mixerloop draws its weights by name."""
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        elif isinstance(module, nn.RMSNorm):
            nn.init.ones_(module.weight)
        elif isinstance(module, LoopedMixer):
            draws = Draws("transformers", int(torch.randint(2**62, ())))
            for parameter, draw in (
                (module.A_log, draw_log_rates),
                (module.dt_bias, draw_step_biases),
            ):
                parameter.data.copy_(torch.from_numpy(draw(len(parameter), draws)))
        elif isinstance(module, LoopedModel) and module.residual_weight is not None:
            nn.init.zeros_(module.residual_weight)


class ReleasedResidual:
    """The learned residual around a pass; its weights are a parameter of the model."""

    def __init__(self, model: "LoopedModel", passes: Passes) -> None:
        self._model, self.passes = model, passes

    def start(self, embedded: Tensor) -> None:
        """Do nothing: this rule needs no tensor from before the first occurrence."""

    def open(
        self, residual: Tensor, kept: Tensor | None, occurrence: Occurrence
    ) -> tuple[Tensor, Tensor]:
        """Save the residual that enters the pass."""
        return residual, residual

    def close(
        self, residual: Tensor, kept: Tensor | None, occurrence: Occurrence
    ) -> tuple[Tensor, Losses | None]:
        """Add a learned share of the residual that entered the pass."""
        weights = self._model.residual_weight
        assert weights is not None
        assert kept is not None
        weight = weights[occurrence.pass_index].to(residual.device)
        return residual + weight * kept.to(residual.device), None


class LoopedModel(LoopedPreTrainedModel):
    """The model without its head: embedding, walk through the schedule, final norm."""

    config_class = ScheduleConfig
    layer_class: type[LoopedLayer] = LoopedLayer

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        ours = config.model()
        self.schedule = ours.occurrences()
        self.mixer_occurrences = [
            occurrence for occurrence in self.schedule if occurrence.sublayer == "mixer"
        ]
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        layers = nn.ModuleList(self.layer_class(ours) for _ in range(ours.num_layers))
        self.layers = cast(Sequence[LoopedLayer], layers)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.residual_weight: nn.Parameter | None = None
        if (rule := ours.pass_rules().get(RESIDUAL)) is not None:
            passes = Passes.round_unit(rule.unit, self.schedule)
            self.residual_weight = nn.Parameter(torch.zeros(passes.num_passes, config.hidden_size))
            self.rules = (ReleasedResidual(self, passes),)
        self.gradient_checkpointing = False
        self.post_init()

    rules: tuple[ReleasedResidual, ...] = ()

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding, under the name that transformers calls."""
        return self.embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:  # pyright: ignore
        """Replace the token embedding."""
        self.embeddings = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutputWithPast | tuple:
        """The normed residual after the last occurrence.

        Hidden states are the residuals before each occurrence, and the normed residual.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give input_ids or inputs_embeds, and not both")
        if input_ids is not None:
            check_ids("input_ids", input_ids)
        residual = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if residual.ndim != 3:
            raise ValueError(f"the batch must be [batch, seq], got {tuple(residual.shape[:-1])}")
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        mask = _needed_mask(attention_mask, residual)
        if mask is not None and _pads_behind(mask):
            if use_cache:
                raise ValueError("attention_mask: with a cache, padding goes before a text")
            use_cache = False  # the state after the padding is not the state after the text
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if self.training and self.gradient_checkpointing:
            use_cache = False
        if use_cache and past_key_values is None:
            past_key_values = Cache(layers=[LinearAttentionLayer() for _ in self.mixer_occurrences])
        seen: list[Tensor] = []
        caches = {
            occurrence: _layer(past_key_values, number)
            for number, occurrence in enumerate(self.mixer_occurrences)
        }

        def run(occurrence: Occurrence, x: Tensor, _: State | None, __: Look | None) -> Output:
            if output_hidden_states:
                seen.append(x)
            layer = self.layers[occurrence.layer]
            if occurrence.sublayer == "ffn":
                return self._run(partial(layer, sublayer="ffn"), x)
            cache = caches[occurrence]
            mixer = partial(layer, sublayer="mixer", attention_mask=mask, state=_state(cache))
            output = self._run(mixer, x)
            if cache is not None and use_cache:
                _remember(cache, output.state)
            return output

        residual = self.norm(walk(run, residual, self.schedule, rules=self.rules).residual)
        if output_hidden_states:
            seen.append(residual)
        result = BaseModelOutputWithPast(
            last_hidden_state=residual,
            past_key_values=past_key_values if use_cache else None,
            hidden_states=tuple(seen) if output_hidden_states else None,  # pyright: ignore
        )
        wanted = self.config.return_dict if return_dict is None else return_dict
        return result if wanted else result.to_tuple()

    def _run(self, function: Callable[[Tensor], Any], residual: Tensor) -> Any:
        """Run an occurrence; gradient checkpointing computes it again in the backward pass."""
        if self.gradient_checkpointing and self.training:
            return self._gradient_checkpointing_func(function, residual)
        return function(residual)


class LoopedForCausalLM(LoopedPreTrainedModel, GenerationMixin):
    """A looped model with its tied head."""

    config_class = ScheduleConfig
    _tied_weights_keys = {"lm_head.weight": "model.embeddings.weight"}  # noqa: RUF012
    accepts_loss_kwargs = True
    model_class: type[LoopedModel] = LoopedModel

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        assert self.generation_config is not None
        self.generation_config.use_cache = True  # even if the config of training disables it
        self.model = self.model_class(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """False: the model makes its own cache. `generate` would make one layer for each block."""
        return False

    def get_output_embeddings(self) -> nn.Module:
        """The tied head, under the name that transformers calls."""
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the head."""
        self.lm_head = new_embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
    ) -> CausalLMOutputWithPast | tuple:
        """Logits, and the loss if there are labels; the loss function shifts the labels."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        hidden = outputs.last_hidden_state
        positions = (
            slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        )
        logits = self.lm_head(hidden[:, positions])
        loss = None
        if labels is not None:
            if labels.shape != logits.shape[:2]:
                wanted = tuple(logits.shape[:2])
                raise ValueError(f"labels must be {wanted}, got {tuple(labels.shape)}")
            loss = self.loss_function(
                logits=logits,
                labels=labels,
                vocab_size=self.config.vocab_size,
                num_items_in_batch=num_items_in_batch,
            )
        result = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
        )
        wanted = self.config.return_dict if return_dict is None else return_dict
        return result if wanted else result.to_tuple()

    def prepare_inputs_for_generation(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor,
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | None = None,
        output_hidden_states: bool | None = None,
        **of_generate: object,
    ) -> dict:
        """Inputs of the next call: the prompt first, then the last token with the cached state."""
        passed = {name for name, value in of_generate.items() if value is not None}
        if unknown := passed - OF_GENERATE:
            raise ValueError(f"{', '.join(sorted(unknown))}: means nothing to this model")
        inputs: dict = {
            "use_cache": use_cache,
            "logits_to_keep": logits_to_keep or 0,
            "output_hidden_states": output_hidden_states,
        }
        if _state(_layer(past_key_values, 0)) is not None:
            return {**inputs, "input_ids": input_ids[:, -1:], "past_key_values": past_key_values}
        if inputs_embeds is not None:
            return {**inputs, "inputs_embeds": inputs_embeds, "attention_mask": attention_mask}
        return {**inputs, "input_ids": input_ids, "attention_mask": attention_mask}


class MixerLoopModel(LoopedModel):
    """A mixer loop, under the class name of the released checkpoints."""

    config_class = MixerLoopConfig


class MixerLoopForCausalLM(LoopedForCausalLM):
    """A mixer loop, under the class name of the released checkpoints."""

    config_class = MixerLoopConfig


class FullLoopModel(LoopedModel):
    """A full loop, under the class name of the released checkpoints."""

    config_class = FullLoopConfig


class FullLoopForCausalLM(LoopedForCausalLM):
    """A full loop, under the class name of the released checkpoints."""

    config_class = FullLoopConfig


class FFNLoopModel(LoopedModel):
    """An ffn loop, under the class name of the released checkpoints."""

    config_class = FFNLoopConfig


class FFNLoopForCausalLM(LoopedForCausalLM):
    """An ffn loop, under the class name of the released checkpoints."""

    config_class = FFNLoopConfig


class NoLoopModel(LoopedModel):
    """A model without a loop, with the names of flash-linear-attention."""

    config_class = NoLoopConfig
    layer_class = NoLoopLayer


class GatedDeltaNetForCausalLM(LoopedForCausalLM):
    """A model without a loop, with the names of flash-linear-attention."""

    config_class = NoLoopConfig
    model_class = NoLoopModel


def _needed_mask(attention_mask: Tensor | None, residual: Tensor) -> Tensor | None:
    """The checked mask, or None if no token is padding."""
    if attention_mask is None:
        return None
    check_tensor("attention_mask", attention_mask)
    if attention_mask.shape != residual.shape[:2]:
        raise ValueError(
            f"attention_mask must be {tuple(residual.shape[:2])}, got {tuple(attention_mask.shape)}"
        )
    if bool(attention_mask.all()):
        return None
    return attention_mask


def _pads_behind(mask: Tensor) -> bool:
    """Whether some text has padding after one of its tokens."""
    return bool((mask[:, 1:] < mask[:, :-1]).any())


def _layer(cache: Cache | None, number: int) -> LinearAttentionLayer | None:
    """The part of a cache that belongs to a mixer occurrence."""
    if cache is None:
        return None
    layer = next(iter(getattr(cache, "layers", [])[number:]), None)
    if not isinstance(layer, LinearAttentionLayer):
        raise ValueError("past_key_values: not a cache that this model made")
    return layer


def _state(cache: LinearAttentionLayer | None) -> LinearState | None:
    if cache is None or not cache.has_previous_state[0]:
        return None
    memory, history = cache.recurrent_states[0], cache.conv_states[0]
    assert memory is not None
    assert history is not None
    return memory.clone(), history.transpose(1, 2).contiguous()


def _remember(cache: LinearAttentionLayer, state: LinearState) -> None:
    memory, history = state
    cache.update_conv_state(history.transpose(1, 2))
    cache.update_recurrent_state(memory)


def _form(device: str, d_key: int) -> Form:
    return form_of_rule(choose_form("auto", device), "own", d_key)
