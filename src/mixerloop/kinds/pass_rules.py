"""The pass rules that come with the package: their options and their registration."""

from dataclasses import dataclass

from mixerloop.kinds.registry import Kind, register


@dataclass(frozen=True, kw_only=True)
class PassResidualOptions:
    """Options of the learned residual around each pass."""

    unit: str
    """A pass goes round this unit: mixer, ffn, block or stack; released: round the unit that the
    schedule repeats, as in the authors' code."""


register(
    Kind(
        "pass_residual",
        "pass rule",
        PassResidualOptions,
        "mixerloop.model.passes.pass_residual:PassResidual",
    )
)
