"""The schedule: which sublayer runs when.

A looped model is a stack of layers plus a schedule. The schedule lists every *occurrence* of a
sublayer in execution order, so training, decoding, cost and interventions all use the same
addresses. A new way of looping is another function here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from mixerloop.parsing import checked

Sublayer = Literal["mixer", "ffn"]
Unit = Literal["mixer", "ffn", "block", "stack", "coda"]
"""What a pass goes round: a sublayer, a layer's mixer and ffn, the layers that the schedule repeats
(its stack), or the layers after those (its coda)."""
PassCounts = int | Sequence[int]
"""The number of passes of all layers, or a number for each layer."""

BLOCK: tuple[Sublayer, ...] = ("mixer", "ffn")
DEFAULT_NUM_PASSES = 4  # the paper's T


@dataclass(frozen=True, slots=True, order=True)
class Occurrence:
    """An execution of a sublayer: the address of an activation or a state."""

    layer: int
    sublayer: Sublayer
    pass_index: int

    def __str__(self) -> str:
        return f"layer{self.layer}.{self.sublayer}.pass{self.pass_index}"


Schedule = tuple[Occurrence, ...]


def in_order(steps: Iterable[tuple[int, Sublayer]]) -> Schedule:
    """The schedule that runs these sublayers; `pass_index` counts how often each has run before."""
    seen: Counter[tuple[int, Sublayer]] = Counter()
    schedule = []
    for layer, sublayer in steps:
        schedule.append(Occurrence(layer, sublayer, seen[layer, sublayer]))
        seen[layer, sublayer] += 1
    return tuple(schedule)


@checked
def no_loop(num_layers: int) -> Schedule:
    """Every layer once: the mixer, then the ffn."""
    return full_loop(num_layers, 1)


@checked
def mixer_loop(num_layers: int, num_passes: PassCounts) -> Schedule:
    """In each layer the mixer `num_passes` times, then the ffn once."""
    return _layer_by_layer(num_layers, num_passes, lambda n: ("mixer",) * n + ("ffn",))


@checked
def ffn_loop(num_layers: int, num_passes: PassCounts) -> Schedule:
    """In each layer the mixer once, then the ffn `num_passes` times."""
    return _layer_by_layer(num_layers, num_passes, lambda n: ("mixer",) + ("ffn",) * n)


@checked
def block_loop(num_layers: int, num_passes: PassCounts) -> Schedule:
    """In each layer mixer and ffn in turn, `num_passes` times, before the next layer."""
    return _layer_by_layer(num_layers, num_passes, lambda n: BLOCK * n)


@checked
def full_loop(num_layers: int, num_passes: int) -> Schedule:
    """The whole stack of layers, `num_passes` times."""
    return prelude_core_coda(num_prelude=0, num_core=num_layers, num_coda=0, num_passes=num_passes)


@checked
def prelude_core_coda(
    *, num_prelude: int, num_core: int, num_coda: int, num_passes: int
) -> Schedule:
    """Some layers once, then a core of layers `num_passes` times, then some layers once."""
    _require("num_core", num_core, at_least=1)
    _require("num_prelude", num_prelude, at_least=0)
    _require("num_coda", num_coda, at_least=0)
    _require("num_passes", num_passes, at_least=1)
    core = range(num_prelude, num_prelude + num_core)
    coda = range(core.stop, core.stop + num_coda)
    layers = [*range(num_prelude), *(list(core) * num_passes), *coda]
    return in_order((layer, sublayer) for layer in layers for sublayer in BLOCK)


LOOPS: dict[str, Callable[[int, int], Schedule]] = {
    "no_loop": lambda num_layers, num_passes: no_loop(num_layers),
    "mixer_loop": mixer_loop,
    "ffn_loop": ffn_loop,
    "block_loop": block_loop,
    "full_loop": full_loop,
}
"""The loops that have a name, each as a function of layers and passes."""


def first_passes(schedule: Schedule, num_passes: int) -> Schedule:
    """A schedule that is left after so many passes of each sublayer."""
    _require("num_passes", num_passes, at_least=1)
    return tuple(occurrence for occurrence in schedule if occurrence.pass_index < num_passes)


def with_passes(schedule: Schedule, num_passes: int) -> Schedule:
    """A schedule with another number of passes of what it repeats.

    Layers that run once still do. More passes than the schedule has need a regular loop, in which
    all layers that repeat make the same number of passes.
    """
    _require("num_passes", num_passes, at_least=1)
    if num_passes <= num_passes_of(schedule):
        return first_passes(schedule, num_passes)
    unit, num_layers, looped = (
        repeated_unit(schedule),
        num_layers_of(schedule),
        looped_layers(schedule),
    )
    if unit is None:
        raise ValueError(f"the schedule repeats nothing, so it has no {num_passes} passes")
    if unit == "stack":
        num_coda = num_layers - looped.stop
        return prelude_core_coda(
            num_prelude=looped.start, num_core=len(looped), num_coda=num_coda, num_passes=num_passes
        )
    sublayer = "mixer" if unit == "block" else unit
    counts = Counter(one.layer for one in schedule if one.sublayer == sublayer)
    if not set(counts.values()) <= {1, num_passes_of(schedule)}:
        raise ValueError(
            f"its layers make different numbers of passes, so {num_passes} passes have no meaning"
        )
    more = [num_passes if counts[layer] > 1 else 1 for layer in range(num_layers)]
    loop = {"mixer": mixer_loop, "ffn": ffn_loop, "block": block_loop}[unit]
    longer = loop(num_layers, more)
    if first_passes(longer, num_passes_of(schedule)) != schedule:
        raise ValueError(f"it is no regular loop, so {num_passes} passes have no meaning")
    return longer


def num_layers_of(schedule: Schedule) -> int:
    """How many layers a stack needs to run this schedule."""
    return 1 + max(occurrence.layer for occurrence in schedule)


def num_passes_of(schedule: Schedule) -> int:
    """The largest number of passes any sublayer makes."""
    return 1 + max(occurrence.pass_index for occurrence in schedule)


def looped_layers(schedule: Schedule) -> range:
    """From the first layer that a schedule repeats to the last; all layers without a loop."""
    repeated = [occurrence.layer for occurrence in schedule if occurrence.pass_index > 0]
    if not repeated:
        return range(num_layers_of(schedule))
    return range(min(repeated), max(repeated) + 1)


def repeated_unit(schedule: Schedule) -> Unit | None:
    """The unit that a schedule repeats, or nothing where every sublayer runs once."""
    repeated = {occurrence.sublayer for occurrence in schedule if occurrence.pass_index > 0}
    for sublayer in BLOCK:
        if repeated <= {sublayer}:
            return sublayer if repeated else None
    num_layers, looped = num_layers_of(schedule), looped_layers(schedule)
    if schedule == prelude_core_coda(
        num_prelude=looped.start,
        num_core=len(looped),
        num_coda=num_layers - looped.stop,
        num_passes=num_passes_of(schedule),
    ):
        return "stack"
    counts = Counter(one.layer for one in schedule if one.sublayer == "mixer")
    if schedule == block_loop(num_layers, [counts[layer] for layer in range(num_layers)]):
        return "block"
    raise ValueError("the schedule repeats mixers and ffns, but neither as blocks nor as a stack")


def _layer_by_layer(
    num_layers: int, num_passes: PassCounts, layer_steps: Callable[[int], tuple[Sublayer, ...]]
) -> Schedule:
    _require("num_layers", num_layers, at_least=1)
    counts = [num_passes] * num_layers if isinstance(num_passes, int) else list(num_passes)
    if len(counts) != num_layers:
        raise ValueError(f"num_passes names {len(counts)} layers; the stack has {num_layers}")
    for count in counts:
        _require("num_passes", count, at_least=1)
    return in_order(
        (layer, sublayer) for layer, count in enumerate(counts) for sublayer in layer_steps(count)
    )


def _require(name: str, value: int, *, at_least: int) -> None:
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}")
