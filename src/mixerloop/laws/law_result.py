"""The law of each loop of a study as a result, with intervals and the cells behind them."""

from dataclasses import dataclass
from typing import Any

from mixerloop.results import Estimate, Provenance, encode

PUBLISHED_PHI = {"full_loop": 0.46}
"""arXiv 2604.21106, from transformers of which a core of layers loops. Nothing is published for
other loops."""


@dataclass(frozen=True, kw_only=True)
class CellResidual:
    """A group of cells that differ in their seed only, beside the law."""

    loop: str
    size: str
    passes: int
    once: int
    recurrent: int
    tokens: int
    seeds: int
    """The number of seeds."""
    nll: float
    """The mean over the seeds."""
    fitted: float
    """The NLL of the law."""

    @property
    def residual(self) -> float:
        """The mean NLL minus the law."""
        return self.nll - self.fitted


@dataclass(frozen=True, kw_only=True)
class LeftOutSize:
    """How well a law that was fitted without a size predicts the cells of that size."""

    size: str
    cells: int
    """Groups of cells of this size."""
    mean_error: float
    """NLL minus prediction, in nats, the mean over the groups."""
    rms_error: float


@dataclass(frozen=True, kw_only=True)
class LoopLaw:
    """The law of one loop."""

    loop: str
    passes: tuple[int, ...]
    parameters: dict[str, Estimate]
    """E, A, alpha, B, beta and phi; a given E has no width."""
    published_phi: float | None
    at_bound: tuple[str, ...]
    """Parameters whose fit or interval ends at the bound of their range: the cells leave that side
    open."""
    run_sd: float
    """Standard deviation of a run around the law, in nats."""
    seed_sd: float | None
    """Standard deviation of the seeds of a cell, in nats; None without a second seed."""
    cells: tuple[CellResidual, ...]
    left_out: tuple[LeftOutSize, ...]
    """Empty with fewer than three sizes."""

    @property
    def phi(self) -> Estimate:
        """What passes are worth: r of them count as r^phi times the parameters."""
        return self.parameters["phi"]


@dataclass(frozen=True, kw_only=True)
class LawResult:
    """The laws of all loops of a study whose cells identify them."""

    title: str
    """The title of the study."""
    loops: tuple[LoopLaw, ...]
    rejected: dict[str, str]
    """Loops whose cells do not identify a law, with the reason."""
    floor: float | None
    """E, if it was given."""
    remarks: tuple[str, ...]
    resamples: int
    provenance: Provenance

    def to_json(self) -> dict[str, Any]:
        """The JSON that `mixerloop law --json` prints."""
        return encode(self)
