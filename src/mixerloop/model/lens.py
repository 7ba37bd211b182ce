"""The lens: activations that are seen, or replaced, during a walk, each by its address.

An address is an occurrence and a point of it: `layer3.mixer.pass2.normed`. Every occurrence has the
points in `POINTS`; a sublayer may declare points inside it (`SublayerModule.points`).
"""

import difflib
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import Tensor

from mixerloop.schedule import Occurrence, Schedule

Axes = tuple[str, ...]
"""The names of an activation's axes. The first is always `window`."""
OF_RESIDUAL: Axes = ("window", "token", "d_model")
POINTS: Mapping[str, Axes] = dict.fromkeys(("input", "normed", "update", "output"), OF_RESIDUAL)
"""The residual that enters an occurrence, after pass rules have opened; what its sublayer reads;
what the occurrence adds to the residual; and the residual after pass rules have closed."""
MOST_NEAR = 3


class Address(NamedTuple):
    """Where an activation is."""

    occurrence: Occurrence
    point: str

    def __str__(self) -> str:
        return f"{self.occurrence}.{self.point}"


Watch = Callable[[Address, Tensor], Tensor | None]
"""Sees an activation. A tensor that it returns takes the place of the activation, which a watch
must not change in place."""
Lens = Mapping[str, Watch]
"""Watches by patterns of addresses: `layer*.ffn.*.update`."""


class Look:
    """The watches of one occurrence."""

    def __init__(self, occurrence: Occurrence, watches: Mapping[str, Sequence[Watch]]) -> None:
        self.occurrence, self._watches = occurrence, watches

    def sees(self, point: str) -> bool:
        """Whether anything watches a point."""
        return point in self._watches

    def __call__(self, point: str, x: Tensor) -> Tensor:
        """The activation, or the tensor that takes its place."""
        for watch in self._watches.get(point, ()):
            address = Address(self.occurrence, point)
            replaced = watch(address, x)
            if replaced is None:
                continue
            if not isinstance(replaced, Tensor) or _sort(replaced) != _sort(x):
                raise ValueError(
                    f"{address}: a watch returns None or a tensor of the activation's shape, type "
                    "and device"
                )
            x = replaced
        return x


def _sort(x: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return x.shape, x.dtype, x.device


UNWATCHED = Look(Occurrence(0, "mixer", 0), {})
"""The look of an occurrence without watches."""
Looks = Mapping[Occurrence, Look]
NO_LOOKS: Looks = {}


def addresses(
    schedule: Schedule, points_of: Callable[[Occurrence], Collection[str]]
) -> list[Address]:
    """All addresses of a walk, in order of execution."""
    return [
        Address(occurrence, point) for occurrence in schedule for point in points_of(occurrence)
    ]


def focus(lens: Lens, known: Sequence[Address]) -> Looks:
    """The watches of each occurrence; raises if a pattern matches no known address."""
    if not isinstance(lens, Mapping) or not all(
        isinstance(pattern, str) and callable(watch) for pattern, watch in lens.items()
    ):
        raise TypeError(f"lens must map patterns of addresses to functions, got {lens!r}")
    watches: dict[Occurrence, dict[str, list[Watch]]] = defaultdict(lambda: defaultdict(list))
    for pattern, watch in lens.items():
        for address in matching(pattern, known):
            watches[address.occurrence][address.point].append(watch)
    return {occurrence: Look(occurrence, of_point) for occurrence, of_point in watches.items()}


def matching(pattern: str, known: Sequence[Address]) -> list[Address]:
    """The addresses that a pattern matches; raises if there is none."""
    matched = [address for address in known if fnmatchcase(str(address), pattern)]
    if not matched:
        near = difflib.get_close_matches(pattern, map(str, known), n=MOST_NEAR, cutoff=0)
        raise ValueError(
            f"lens: '{pattern}' matches no address of this walk; near: {', '.join(near)}"
        )
    return matched
