"""The result of measuring routing divergence. All intervals are over windows."""

from dataclasses import dataclass

from mixerloop.config import ComputeDtype
from mixerloop.results import Estimate, Result


@dataclass(frozen=True, kw_only=True)
class RoutingFigures:
    """What changes from each pass to the next; the first figure is of the second pass."""

    changed: tuple[Estimate, ...]
    """The share of tokens with another set of experts than in the pass before."""
    moved: tuple[Estimate, ...]
    """The share of a token's experts that it did not have in the pass before."""


@dataclass(frozen=True, kw_only=True)
class LayerRouting(RoutingFigures):
    """The figures of one layer."""

    layer: int
    num_experts: int
    num_chosen: int
    moved_by_chance: float
    """`moved` of a router that draws its experts at random in every pass."""


@dataclass(frozen=True, kw_only=True)
class RoutingResult(Result):
    """How many tokens change their experts from pass to pass, layer by layer."""

    compute_dtype: ComputeDtype
    windows: int
    context: int
    """Tokens of a window; all of them are counted."""
    layers: tuple[LayerRouting, ...]
    """The layers whose ffn chooses experts and runs more than once."""
