"""Config classes of looped models for `transformers`."""

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
    """The sizes that all model types share."""

    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012
    has_no_defaults_at_init = True  # the number of passes has no default

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
        """Reject unknown keys and values: a misspelt key would otherwise have no effect."""
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
        """Our own config; raises if a key in `checked` has a value that no model here has."""
        keys = (*SIZE_KEYS, *LOOP_KEYS, *MUST_BE)
        values = {key: getattr(self, key) for key in keys if hasattr(self, key)}
        return model_config({"model_type": self.model_type, **values, **checked})


@strict
class MixerLoopConfig(LoopedConfig):
    """The mixer of each layer loops."""

    model_type = "mixerloop"

    loop_count: int | None = None
    use_residual: bool | None = None
    schedule: str | None = None
    """Our first exports described the loop with `schedule` and `pass_residual`."""
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
    """Any schedule, in notation."""

    model_type = ANY_SCHEDULE

    schedule: str | None = None
    pass_residual: str | None = None


@strict
class NoLoopConfig(LoopedConfig):
    """A model without a loop, under the type name of flash-linear-attention."""

    model_type = NO_LOOP
