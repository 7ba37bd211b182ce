"""Looped models for `transformers`: importing this registers them; no remote code is involved.

import mixerloop.interop.hf
model = AutoModelForCausalLM.from_pretrained(FOLDER)
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from mixerloop.interop.hf.configuration import FFNLoopConfig, FullLoopConfig, MixerLoopConfig
from mixerloop.interop.hf.modeling import LoopedForCausalLM, LoopedModel

for _config in (MixerLoopConfig, FullLoopConfig, FFNLoopConfig):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModel.register(_config, LoopedModel, exist_ok=True)
    AutoModelForCausalLM.register(_config, LoopedForCausalLM, exist_ok=True)

__all__ = [
    "FFNLoopConfig",
    "FullLoopConfig",
    "LoopedForCausalLM",
    "LoopedModel",
    "MixerLoopConfig",
]
