"""Transport as a result. All intervals are over windows."""

from dataclasses import dataclass

from mixerloop.results import Estimate, PartialEstimate, Result


@dataclass(frozen=True, kw_only=True)
class PassFigures:
    """The passes of one layer, or of all layers together."""

    itr: PartialEstimate
    """Undefined where no pass moves the prediction."""
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
    """The passes of one layer."""

    layer: int


@dataclass(frozen=True, kw_only=True)
class TransportSummary(PassFigures):
    """The passes of all layers together, and of each layer."""

    pairs_total: int
    """Pairs of a layer and a pass after its first."""
    pairs_novel: int
    """Pairs with a marginal ITR above one half, as the paper counts them."""
    pairs_positive: int
    """Pairs with a positive gain."""
    layers: tuple[LayerFigures, ...]
    intact_max_abs_error: float
    """Between the logits with every pass restored and those of the unmodified model."""


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
    """From 1."""
    delta_nll: Estimate
    """Nats per position."""


@dataclass(frozen=True, kw_only=True)
class RemovalFigures:
    """The cost of every intervention."""

    skip: tuple[RemovalCost, ...]
    """Without a mixer pass."""
    ffn_off: tuple[RemovalCost, ...]
    """Without an ffn."""
    swap_order: tuple[RemovalCost, ...]
    """With an ffn before the mixer pass that preceded it."""
    spearman_marginal_itr_and_skip: PartialEstimate
    """Rank correlation over later (layer, pass) pairs; undefined where one side has no order."""


@dataclass(frozen=True, kw_only=True)
class TransportFigures(TransportSummary):
    """Everything that is measured of one model."""

    compute_dtype: str
    windows: int
    context: int
    """Tokens of a window."""
    positions: tuple[int, ...]
    """Positions in each window at which the prediction is read."""
    noise_floor: NoiseFloorFigures
    removal: RemovalFigures | None
    """None where removal was not measured."""


@dataclass(frozen=True, kw_only=True)
class TransportResult(TransportFigures, Result):
    """The transport of one model and, if measured, of its control."""

    control: TransportFigures | None
    """The same weights before training."""
