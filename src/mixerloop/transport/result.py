"""The result of measuring transport. All intervals are over windows."""

from dataclasses import dataclass

from mixerloop.results import Estimate, PartialEstimate, Result


@dataclass(frozen=True, kw_only=True)
class PassFigures:
    """Figures of each pass, for one layer or for all layers together."""

    itr: PartialEstimate
    """Iterative Transport Rank; undefined if no pass moves the prediction."""
    itr_by_depth: tuple[PartialEstimate, ...]
    """ITR of the first pass, of the first two, and so on."""
    marginal_itr: tuple[Estimate, ...]
    """The share of each pass that no earlier pass can express."""
    hellinger_squared: tuple[Estimate, ...]
    """The effect of each pass on the predicted distribution."""
    target_gain: tuple[Estimate, ...]
    """Nats that each pass adds to the log probability of the target."""
    later_gain: Estimate
    """The gain of all passes after the first."""
    later_share: PartialEstimate
    """The share of the effect that comes after the first pass."""
    top1_flips: tuple[Estimate, ...]
    """The share of positions where a pass changes the most likely token."""


@dataclass(frozen=True, kw_only=True)
class LayerFigures(PassFigures):
    """Figures of each pass of one layer."""

    layer: int


@dataclass(frozen=True, kw_only=True)
class TransportSummary(PassFigures):
    """Figures of each pass for all layers together and for each layer."""

    pairs_total: int
    """Pairs of a layer and a pass after its first."""
    pairs_novel: int
    """Pairs with a marginal ITR above one half, as the paper counts them."""
    pairs_positive: int
    """Pairs with a positive gain."""
    layers: tuple[LayerFigures, ...]
    intact_max_abs_error: float
    """Largest difference between the logits with every pass restored and the unmodified logits."""


@dataclass(frozen=True, kw_only=True)
class NoiseFloorFigures:
    """The share of each pass that is rounding; see `noise.NoiseFloor`."""

    wider_type: str
    windows: int
    hellinger_squared: tuple[float, ...]
    share: tuple[float, ...]
    marginal_itr: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class RemovalCost:
    """The change of the NLL when one occurrence is removed or moved."""

    layer: int
    pass_number: int
    """Counted from 1."""
    delta_nll: Estimate
    """Increase of the NLL in nats per position."""


@dataclass(frozen=True, kw_only=True)
class RemovalFigures:
    """The cost of every removal and swap."""

    skip: tuple[RemovalCost, ...]
    """Costs of skipping a mixer pass."""
    ffn_off: tuple[RemovalCost, ...]
    """Costs of skipping an ffn."""
    swap_order: tuple[RemovalCost, ...]
    """Costs of running an ffn before the mixer pass that precedes it."""
    spearman_marginal_itr_and_skip: PartialEstimate
    """Rank correlation over (layer, pass) pairs after the first pass.

    Undefined if all marginal ITRs or all costs are equal, or if there are fewer than two pairs.
    """


@dataclass(frozen=True, kw_only=True)
class TransportFigures(TransportSummary):
    """All figures of one model, and the settings of the measurement."""

    compute_dtype: str
    windows: int
    context: int
    """The number of tokens of a window."""
    positions: tuple[int, ...]
    """Positions in each window at which the prediction is read."""
    noise_floor: NoiseFloorFigures
    removal: RemovalFigures | None
    """None if removals were not measured."""


@dataclass(frozen=True, kw_only=True)
class TransportResult(TransportFigures, Result):
    """The transport of one model and, if measured, of its control."""

    control: TransportFigures | None
    """The figures of the same model before training; None if not measured."""
