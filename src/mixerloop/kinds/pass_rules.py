"""The pass rules that come with the package: their options and their registration."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from mixerloop.kinds.registry import Kind, register


@dataclass(frozen=True, kw_only=True)
class PassResidualOptions:
    """Options of the learned residual around each pass."""

    unit: str
    """A pass goes round this unit: mixer, ffn, block or stack; released: round the unit that the
    schedule repeats, as in the authors' code."""


@dataclass(frozen=True, kw_only=True)
class PassNormOptions:
    """Options of the norm before a pass."""

    unit: str
    """A pass goes round this unit: mixer, ffn, block, stack or coda."""
    before: Literal["later", "every"] = "later"
    """Normalise before every pass, or not before the first."""
    shared: bool = False
    """Use the weights of the final norm."""


@dataclass(frozen=True, kw_only=True)
class PassDampingOptions:
    """Options of damped passes."""

    unit: str
    """A pass goes round this unit: mixer, ffn, block or stack."""
    share: float = 0.5
    """Share of its change to the residual that each pass but the first keeps."""

    def __post_init__(self) -> None:
        """Reject a share that is no finite number."""
        if not float("-inf") < self.share < float("inf"):
            raise ValueError(f"share must be finite, got {self.share}")


@dataclass(frozen=True, kw_only=True)
class InputInjectionOptions:
    """Options of input injection."""

    carries_input: ClassVar[bool] = True
    """Gradients of a later pass reach what comes before the loop."""

    unit: str
    """A pass goes round this unit: mixer, ffn, block or stack."""


_HOME = "mixerloop.model.passes"
for _kind in (
    Kind("pass_residual", "pass rule", PassResidualOptions, f"{_HOME}.pass_residual:PassResidual"),
    Kind("pass_norm", "pass rule", PassNormOptions, f"{_HOME}.pass_norm:PassNorm"),
    Kind("pass_damping", "pass rule", PassDampingOptions, f"{_HOME}.pass_damping:PassDamping"),
    Kind(
        "input_injection",
        "pass rule",
        InputInjectionOptions,
        f"{_HOME}.input_injection:InputInjection",
    ),
):
    register(_kind)
