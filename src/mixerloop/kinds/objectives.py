"""Objectives: what a step minimises. Their options, and the section `[train.objective]`."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from mixerloop.kinds.registry import Kind
from mixerloop.parsing import from_dict, name_and_numbers, suggest

OBJECTIVES: dict[str, Kind] = {}
"""The registered objectives, by name."""
NEXT_TOKEN = "next_token"


@dataclass(frozen=True, kw_only=True)
class NextTokenOptions:
    """The loss after the last pass has no options."""


@dataclass(frozen=True, kw_only=True)
class EveryPassOptions:
    """Options of a loss after every pass."""

    weights: str | tuple[float, ...] = "uniform"
    """Weights of the passes: uniform, later (1, 2, 3, ...), geometric(0.3), or a list."""
    readout: Literal["early", "coda"] = "early"
    """What is read out for a pass before the last: early, the residual where the pass closes; coda,
    the end of the schedule cut to so many passes."""

    def __post_init__(self) -> None:
        """Reject weights that have no meaning."""
        pass_shares(self.weights, 2 if isinstance(self.weights, str) else len(self.weights))
        if not isinstance(self.weights, str) and self.weights[-1] <= 0:
            raise ValueError(
                f"weights = {list(self.weights)}: the last pass needs a weight above 0"
            )


def pass_shares(weights: str | tuple[float, ...], num_passes: int) -> tuple[float, ...]:
    """The share of each pass in the loss."""
    if isinstance(weights, str):
        try:
            name, numbers = name_and_numbers(weights)
        except ValueError:
            name, numbers = "", ()
        if (name, numbers) == ("uniform", ()):
            shares = (1.0,) * num_passes
        elif (name, numbers) == ("later", ()):
            shares = tuple(float(number + 1) for number in range(num_passes))
        elif name == "geometric" and len(numbers) == 1 and 0 < numbers[0] < 1:
            stop = numbers[0]
            shares = tuple(stop * (1 - stop) ** number for number in range(num_passes - 1))
            shares += ((1 - stop) ** (num_passes - 1),)
        else:
            raise ValueError(
                f"weights = '{weights}': give uniform, later, geometric(0.3) or a list of numbers"
            )
    else:
        shares = weights
        if len(shares) != num_passes:
            raise ValueError(
                f"weights = {list(weights)}: {len(shares)} weights, and the schedule makes "
                f"{num_passes} passes"
            )
    total = sum(shares)
    if not all(0 <= share < math.inf for share in shares) or not 0 < total < math.inf:
        raise ValueError(f"weights = {list(shares)}: no share of a loss")
    return tuple(share / total for share in shares)


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """The section `[train.objective]`: the kind of objective, and its options."""

    kind: str = NEXT_TOKEN
    """What a step minimises: next_token, or every_pass for a loss after every pass."""
    options: Any = field(default_factory=NextTokenOptions)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "ObjectiveConfig":
        """Read the section strictly."""
        options = {key: value for key, value in table.items() if key != "kind"}
        kind = table.get("kind", NEXT_TOKEN)
        if not isinstance(kind, str) or kind not in OBJECTIVES:
            known = suggest(kind, OBJECTIVES)
            raise ValueError(f"train.objective.kind '{kind}' is unknown; {known}")
        where = "train.objective."
        for key in options if not fields(OBJECTIVES[kind].options) else ():
            raise ValueError(f"{where}{key}: {kind} has no options; give {where}kind")
        try:
            return cls(kind=kind, options=from_dict(OBJECTIVES[kind].options, options, where))
        except ValueError as error:
            said = str(error).startswith(where.rstrip("."))
            raise ValueError(str(error) if said else f"{where}{error}") from None

    def table(self) -> dict[str, Any]:
        """The section with every option."""
        return {"kind": self.kind, **asdict(self.options)}


def register_objective(kind: Kind) -> None:
    """Make an objective known to configs."""
    OBJECTIVES[kind.name] = kind


_HOME = "mixerloop.training.objectives"
for _kind in (
    Kind(NEXT_TOKEN, "objective", NextTokenOptions, f"{_HOME}.next_token:NextToken"),
    Kind("every_pass", "objective", EveryPassOptions, f"{_HOME}.every_pass:EveryPass"),
):
    register_objective(_kind)
