"""Looped models for `transformers`: importing this registers them; no remote code is involved.

import mixerloop.interop.hf
model = AutoModelForCausalLM.from_pretrained(FOLDER)
"""

try:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
except ModuleNotFoundError:
    missing = "mixerloop.interop.hf needs transformers: pip install 'mixerloop[hf]'"
    raise ImportError(missing) from None

from mixerloop.interop.hf.configuration import FFNLoopConfig, FullLoopConfig, MixerLoopConfig
from mixerloop.interop.hf.modeling import (
    FFNLoopForCausalLM,
    FFNLoopModel,
    FullLoopForCausalLM,
    FullLoopModel,
    LoopedForCausalLM,
    LoopedModel,
)

for _config, _model, _for_causal_lm in (
    (MixerLoopConfig, LoopedModel, LoopedForCausalLM),
    (FullLoopConfig, FullLoopModel, FullLoopForCausalLM),
    (FFNLoopConfig, FFNLoopModel, FFNLoopForCausalLM),
):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModel.register(_config, _model, exist_ok=True)
    AutoModelForCausalLM.register(_config, _for_causal_lm, exist_ok=True)

__all__ = ["LoopedForCausalLM", "LoopedModel", "MixerLoopConfig"]
