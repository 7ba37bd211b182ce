"""Kinds: sorts of mixer, ffn, pass rule, objective and depth, with their options.

A kind is registered once, under its name. Its options are a frozen dataclass, which is the table
`[model.NAME]` of a config. Its class is named by module, and loaded when a model is made: reading a
config loads no torch. See `docs/decisions/kinds.md`.
"""

from mixerloop.kinds.depths import DEPTHS, FIXED, depth_rule, pass_weights
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
from mixerloop.kinds.objectives import (
    OBJECTIVES,
    EveryPassOptions,
    ObjectiveConfig,
    pass_shares,
    register_objective,
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
    "DEPTHS",
    "FIXED",
    "KINDS",
    "LARGEST_SIZE",
    "MOST_LAYERS",
    "OBJECTIVES",
    "RESERVED",
    "AttentionOptions",
    "DeltaNetOptions",
    "DeltaRuleOptions",
    "EveryPassOptions",
    "ExpertsOptions",
    "GatedDeltaNet2Options",
    "GatedDeltaNetOptions",
    "GatedLinearAttentionOptions",
    "InputInjectionOptions",
    "KimiDeltaOptions",
    "Kind",
    "Mamba2Options",
    "ObjectiveConfig",
    "PassDampingOptions",
    "PassNormOptions",
    "PassResidualOptions",
    "RetentionOptions",
    "Role",
    "SwiGLUOptions",
    "check_size",
    "depth_rule",
    "kind_of",
    "pass_shares",
    "pass_weights",
    "register",
    "register_objective",
]
