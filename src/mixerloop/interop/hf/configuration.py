"""Configs of looped models, as `transformers` keeps them."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from mixerloop.config import ModelConfig
from mixerloop.interop.released_config import (
    ANY_SCHEDULE,
    LOOP_KEYS,
    MUST_BE,
    NO_LOOP,
    OLD_PASSES,
    SIZE_KEYS,
    WITHOUT_MEANING,
    model_config,
)
from mixerloop.parsing import suggest


@strict
class LoopedConfig(PreTrainedConfig):
    """Sizes that all types share."""

    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012
    has_no_defaults_at_init = True  # a number of passes has none

    vocab_size: int = 32_000
    hidden_size: int = 288
    num_hidden_layers: int = 6
    num_heads: int = 4
    head_dim: int = 72
    intermediate_size: int | None = None
    hidden_ratio: int | float | None = 4
    expand_v: int | float = 1.0
    allow_neg_eigval: bool = False
    conv_size: int = 4
    norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    use_cache: bool = True
    initializer_range: float = 0.02
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Refuse what no model here has; a misspelt key would otherwise do nothing."""
        base = {"name_or_path", "attn_implementation", "experts_implementation", "num_labels"}
        ours = set(type(self).__dataclass_fields__)
        if kwargs.get(OLD_PASSES, 1) is None:
            del kwargs[OLD_PASSES]
        checked = {key: kwargs.pop(key) for key in (*MUST_BE, "num_v_heads") if key in kwargs}
        fixed = {key: value for key, value in checked.items() if key not in ours}
        for key in kwargs:
            if key not in WITHOUT_MEANING | base and not key.startswith("_"):
                raise ValueError(f"unknown key {key}; {suggest(key, sorted(ours))}")
        super().__post_init__(**kwargs)
        self.model(**fixed)

    def model(self, **checked: Any) -> ModelConfig:
        """As our own models have it; `checked` are keys that must have the one value it has."""
        keys = (*SIZE_KEYS, *LOOP_KEYS, *MUST_BE)
        given = {key: getattr(self, key) for key in keys if hasattr(self, key)}
        return model_config({"model_type": self.model_type, **given, **checked})


@strict
class MixerLoopConfig(LoopedConfig):
    """The mixer of each layer loops."""

    model_type = "mixerloop"

    loop_count: int | None = None
    use_residual: bool | None = None
    schedule: str | None = None
    """With pass_residual, how our first exports said what loops."""
    pass_residual: str | None = None


@strict
class FullLoopConfig(MixerLoopConfig):
    """The whole stack loops."""

    model_type = "fullloop"


@strict
class FFNLoopConfig(MixerLoopConfig):
    """The ffn of each layer loops."""

    model_type = "ffnloop"


@strict
class ScheduleConfig(LoopedConfig):
    """Any schedule, written out."""

    model_type = ANY_SCHEDULE

    schedule: str | None = None
    pass_residual: str | None = None


@strict
class NoLoopConfig(LoopedConfig):
    """No loop, under the name of flash-linear-attention's model."""

    model_type = NO_LOOP
