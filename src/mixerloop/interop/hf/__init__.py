"""Looped models for `transformers`: importing this registers them; no remote code is involved.

import mixerloop.interop.hf
model = AutoModelForCausalLM.from_pretrained(FOLDER)
"""

try:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
except ModuleNotFoundError:
    missing = "mixerloop.interop.hf needs transformers: pip install 'mixerloop[hf]'"
    raise ImportError(missing) from None

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mixerloop.interop.hf.configuration import (
    FFNLoopConfig,
    FullLoopConfig,
    LoopedConfig,
    MixerLoopConfig,
    NoLoopConfig,
    ScheduleConfig,
)
from mixerloop.interop.hf.modeling import (
    FFNLoopForCausalLM,
    FFNLoopModel,
    FullLoopForCausalLM,
    FullLoopModel,
    GatedDeltaNetForCausalLM,
    LoopedForCausalLM,
    LoopedModel,
    MixerLoopForCausalLM,
    MixerLoopModel,
    NoLoopModel,
)

for _config, _model, _for_causal_lm in (
    (MixerLoopConfig, MixerLoopModel, MixerLoopForCausalLM),
    (FullLoopConfig, FullLoopModel, FullLoopForCausalLM),
    (FFNLoopConfig, FFNLoopModel, FFNLoopForCausalLM),
    (ScheduleConfig, LoopedModel, LoopedForCausalLM),
    (NoLoopConfig, NoLoopModel, GatedDeltaNetForCausalLM),
):
    if _config is NoLoopConfig and _config.model_type in CONFIG_MAPPING:
        continue  # flash-linear-attention has registered its own class
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModel.register(_config, _model, exist_ok=True)
    AutoModelForCausalLM.register(_config, _for_causal_lm, exist_ok=True)

__all__ = [
    "GatedDeltaNetForCausalLM",
    "LoopedConfig",
    "LoopedForCausalLM",
    "LoopedModel",
    "MixerLoopConfig",
    "ScheduleConfig",
]
