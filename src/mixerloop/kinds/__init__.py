"""Kinds: the sorts of mixer, ffn and pass rule that a model can be made of, with their options.

A kind is registered once, under its name. Its options are a frozen dataclass, which is the table
`[model.NAME]` of a config. Its class is named by module, and loaded when a model is made: reading a
config loads no torch. See `docs/decisions/kinds.md`.
"""

from mixerloop.kinds.ffns import ExpertsOptions, SwiGLUOptions
from mixerloop.kinds.mixers import (
    AttentionOptions,
    DeltaNetOptions,
    DeltaRuleOptions,
    GatedDeltaNet2Options,
    GatedDeltaNetOptions,
    GatedLinearAttentionOptions,
    KimiDeltaOptions,
    Mamba2Options,
    RetentionOptions,
)
from mixerloop.kinds.pass_rules import (
    InputInjectionOptions,
    PassDampingOptions,
    PassNormOptions,
    PassResidualOptions,
)
from mixerloop.kinds.registry import (
    KINDS,
    LARGEST_SIZE,
    MOST_LAYERS,
    RESERVED,
    Kind,
    Role,
    check_size,
    kind_of,
    register,
)

__all__ = [
    "KINDS",
    "LARGEST_SIZE",
    "MOST_LAYERS",
    "RESERVED",
    "AttentionOptions",
    "DeltaNetOptions",
    "DeltaRuleOptions",
    "ExpertsOptions",
    "GatedDeltaNet2Options",
    "GatedDeltaNetOptions",
    "GatedLinearAttentionOptions",
    "InputInjectionOptions",
    "KimiDeltaOptions",
    "Kind",
    "Mamba2Options",
    "PassDampingOptions",
    "PassNormOptions",
    "PassResidualOptions",
    "RetentionOptions",
    "Role",
    "SwiGLUOptions",
    "check_size",
    "kind_of",
    "register",
]
