"""Schedules as text: `6x(A4 F)`, and back.

    A F          a mixer (A) and an ffn (F); an A after an F opens the next layer
    A4  (A F)4   a count behind repeats with the same weights: four passes
    6x(A4 F)     a count in front of a layer: six layers of this kind
    4x(6x(A F))  a count in front of several layers: four passes over all of them
    A@2.1 F@2.0  addresses, layer 2 pass 1 and layer 2 pass 0, for orders that no loop describes

Every schedule has a text, and the text gives back the schedule.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from mixerloop.messages import shortened
from mixerloop.parsing import checked
from mixerloop.schedule import (
    DEFAULT_NUM_PASSES,
    LOOPS,
    Occurrence,
    Schedule,
    Sublayer,
    in_order,
    num_layers_of,
)

LETTERS: dict[str, Sublayer] = {"A": "mixer", "F": "ffn"}
LETTER_OF = {sublayer: letter for letter, sublayer in LETTERS.items()}
MAX_OCCURRENCES = 100_000  # a slip such as 9999999x(A F) should not fill the memory
MAX_DEPTH = 20

Steps = tuple[tuple[int, Sublayer], ...]
"""(layer, sublayer) in execution order; the passes are counted at the end."""


@checked
def resolve(text: str, num_layers: int) -> Schedule:
    """A schedule for this many layers from notation or a name: `mixer_loop`, `mixer_loop(2)`."""
    if re.match(r"\s*[A-Za-z]{2,}_?[a-z]", text):
        named = re.fullmatch(r"\s*(\w+)\s*(?:\(\s*([0-9]{1,18})\s*\))?\s*", text)
        if named is None:
            raise ValueError(f"schedule '{text}': write a named loop as full_loop or full_loop(2)")
        return _named_loop(text, named[1], named[2], num_layers)
    schedule = parse(text)
    named_layers = num_layers_of(schedule)
    if named_layers > num_layers or (named_layers < num_layers and "@" not in text):
        raise ValueError(
            f"schedule '{shortened(text)}' has {named_layers} layers; the model has {num_layers}"
        )
    return schedule


def _named_loop(text: str, name: str, count: str | None, num_layers: int) -> Schedule:
    if name not in LOOPS:
        near = difflib.get_close_matches(name, LOOPS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(LOOPS)}"
        raise ValueError(f"schedule '{text}': no loop has this name; {hint}")
    num_passes = DEFAULT_NUM_PASSES if count is None else int(count)
    if num_passes < 1:
        raise ValueError(f"schedule '{text}': the number of passes must be at least 1")
    if name == "no_loop" and count not in (None, "1"):
        raise ValueError(f"schedule '{text}': no_loop makes one pass; leave the count out")
    if 2 * num_layers * num_passes > MAX_OCCURRENCES:
        raise ValueError(f"schedule '{text}': more than {MAX_OCCURRENCES:,} occurrences")
    return LOOPS[name](num_layers, num_passes)


# --- text to schedule ---------------------------------------------------------------------------


def parse(text: str) -> Schedule:
    """Read notation; an error names the character at which parsing fails."""
    return _read_addresses(text) if "@" in text else in_order(_Reader(text).whole().steps)


@dataclass(frozen=True)
class _Piece:
    """A parsed part of a schedule; its layers count from 0."""

    steps: Steps
    num_layers: int
    placed: bool
    """Whether the piece fills whole layers; otherwise it may share its layer with neighbours."""


class _Reader:
    """Recursive descent over the text; `at` is the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0

    def whole(self) -> _Piece:
        piece = self.sequence()
        if self.peek():
            raise self.error("')' closes nothing")
        return piece

    def sequence(self) -> _Piece:
        """Items up to a closing parenthesis or the end, laid out in layers."""
        start = self.at
        items: list[_Piece] = []
        num_steps = 0
        while self.peek() not in (")", ""):
            items.append(self.item())
            num_steps += len(items[-1].steps)
            self.check_size(num_steps, start)
        if not items:
            raise self.error("nothing to run")
        return _in_layers(items)

    def item(self) -> _Piece:
        start = self.at
        if (count := self.count()) is not None:
            group = self.group_after_x()
            self.check_size(count * len(group.steps), start)
            return _again(group, count) if group.placed else _stack(group, count)
        unit = self.unit()
        behind = self.at
        count = self.count()
        if count is None or self.text.startswith("x", self.at):
            self.at = behind  # in `F4x(A F)` the count belongs to the group after the letter
            return unit
        self.check_size(count * len(unit.steps), start)
        return _again(unit, count)

    def unit(self) -> _Piece:
        symbol = self.peek()
        if symbol == "(":
            return self.group()
        if symbol not in LETTERS:
            raise self.error(f"unexpected '{symbol}'; use A (mixer), F (ffn), counts, parentheses")
        self.at += 1
        return _Piece(((0, LETTERS[symbol]),), num_layers=1, placed=False)

    def group(self) -> _Piece:
        opened = self.at
        self.at += 1
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} parentheses inside each other", opened)
        piece = self.sequence()
        if self.peek() != ")":
            raise self.error("'(' is never closed", opened)
        self.at += 1
        self.depth -= 1
        return piece

    def group_after_x(self) -> _Piece:
        if self.peek() != "x":
            raise self.error("expected x, as in 6x(A4 F)")
        self.at += 1
        if self.peek() != "(":
            raise self.error("expected (, as in 6x(A4 F)")
        return self.group()

    def count(self) -> int | None:
        """The number at the current position, or None."""
        digits = re.compile("[0-9]+").match(self.text, self.at)
        if digits is None:
            return None
        if len(digits[0]) > 6 or not 1 <= int(digits[0]) <= MAX_OCCURRENCES:
            raise self.error(f"a count must be from 1 to {MAX_OCCURRENCES:,}")
        self.at = digits.end()
        return int(digits[0])

    def peek(self) -> str:
        """The next character that is not a space; empty at the end."""
        while self.text[self.at : self.at + 1].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def check_size(self, num_steps: int, start: int) -> None:
        if num_steps > MAX_OCCURRENCES:
            raise self.error(f"more than {MAX_OCCURRENCES:,} occurrences", start)

    def error(self, problem: str, at: int | None = None) -> ValueError:
        return _error(self.text, problem, self.at if at is None else at)


def _again(piece: _Piece, count: int) -> _Piece:
    """The piece `count` times with the same weights."""
    return replace(piece, steps=piece.steps * count)


def _stack(layer: _Piece, count: int) -> _Piece:
    """`count` layers with the sublayers of `layer`, each with its own weights."""
    steps: Steps = tuple((index, s) for index in range(count) for _, s in layer.steps)
    return _Piece(steps, num_layers=count, placed=True)


def _in_layers(items: Sequence[_Piece]) -> _Piece:
    """Lay pieces out: a mixer after an ffn opens a layer; a placed piece has layers of its own."""
    steps: list[tuple[int, Sublayer]] = []
    num_layers, layer_is_open, seen_ffn = 0, False, False
    for item in items:
        opens = not layer_is_open or item.placed or (seen_ffn and item.steps[0][1] == "mixer")
        first_layer = num_layers if opens else num_layers - 1
        has_ffn = any(sublayer == "ffn" for _, sublayer in item.steps)
        seen_ffn = has_ffn if opens else seen_ffn or has_ffn
        layer_is_open = not item.placed
        steps.extend((first_layer + layer, sublayer) for layer, sublayer in item.steps)
        num_layers = first_layer + item.num_layers
    return _Piece(tuple(steps), num_layers, placed=num_layers > 1 or items[0].placed)


def _read_addresses(text: str) -> Schedule:
    schedule: dict[Occurrence, None] = {}
    for word in re.finditer(r"\S+", text):
        parts = re.fullmatch(r"([AF])@([0-9]{1,6})\.([0-9]{1,6})", word[0])
        if parts is None:
            raise _error(text, f"'{word[0]}' is not an address such as A@2.1", word.start())
        occurrence = Occurrence(int(parts[2]), LETTERS[parts[1]], int(parts[3]))
        if occurrence in schedule:
            raise _error(text, f"{word[0]} comes a second time", word.start())
        schedule[occurrence] = None
    return tuple(schedule)


def _error(text: str, problem: str, at: int) -> ValueError:
    return ValueError(f"schedule '{shortened(text)}', character {at + 1}: {problem}")


# --- schedule to text ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Repeat:
    """A body that comes `count` times.

    `passes`: the same weights again within a layer. `stack_passes`: the same weights again over
    several layers. `layers`: equal layers, each with its own weights.
    """

    count: int
    body: "_Nodes"
    kind: Literal["passes", "stack_passes", "layers"]


_Nodes = tuple[Sublayer | _Repeat, ...]


@checked
def notation(schedule: Schedule) -> str:
    """The text of a schedule: loops where loops can express the schedule, addresses otherwise."""
    nodes = _loop_tree(schedule)
    if nodes is not None and parse(text := _text(nodes)) == schedule:
        return text
    return " ".join(f"{LETTER_OF[o.sublayer]}@{o.layer}.{o.pass_index}" for o in schedule)


def _loop_tree(schedule: Schedule) -> _Nodes | None:
    """A schedule as nested loops, or None if loops cannot express the schedule."""
    steps: Steps = tuple((occurrence.layer, occurrence.sublayer) for occurrence in schedule)
    return _fold(steps) if steps and in_order(steps) == schedule else None


def _fold(steps: Steps) -> _Nodes | None:
    """Cut between layers that never mix; an uncut part must be a loop over several layers."""
    layers_or_loops: list[_Nodes | _Repeat] = []
    next_layer = 0
    for piece in _cut(steps):
        touched = {layer for layer, _ in piece}
        if touched != set(range(next_layer, next_layer + len(touched))):
            return None
        if len(touched) == 1:
            layers_or_loops.append(_fold_layer(tuple(sublayer for _, sublayer in piece)))
        else:
            count = _repetitions(piece)
            if count == 1:
                return None
            unit = piece[: len(piece) // count]
            body = _fold(tuple((layer - next_layer, sublayer) for layer, sublayer in unit))
            if body is None:
                return None
            layers_or_loops.append(_Repeat(count, body, "stack_passes"))
        next_layer += len(touched)
    return _join_equal_layers(layers_or_loops)


def _cut(steps: Steps) -> list[Steps]:
    """Cut wherever every layer before is lower than every layer after."""
    pieces, start = [], 0
    lowest_from = [layer for layer, _ in steps]
    for i in reversed(range(len(steps) - 1)):
        lowest_from[i] = min(lowest_from[i], lowest_from[i + 1])
    highest = -1
    for i, (layer, _) in enumerate(steps):
        if i > start and highest < lowest_from[i]:
            pieces.append(steps[start:i])
            start = i
        highest = max(highest, layer)
    return [*pieces, steps[start:]]


def _fold_layer(sublayers: tuple[Sublayer, ...]) -> _Nodes:
    count = _repetitions(sublayers)
    if count > 1:
        unit = sublayers[: len(sublayers) // count]
        return (_Repeat(count, _fold_layer(unit), "passes"),)
    runs: list[tuple[Sublayer, int]] = [(s, len(list(run))) for s, run in groupby(sublayers)]
    return tuple(s if n == 1 else _Repeat(n, (s,), "passes") for s, n in runs)


def _repetitions(items: tuple[object, ...]) -> int:
    """How many times `items` repeats its shortest repeating part."""
    for length in range(1, len(items) // 2 + 1):
        if len(items) % length == 0 and items[:length] * (len(items) // length) == items:
            return len(items) // length
    return 1


def _join_equal_layers(layers_or_loops: Sequence[_Nodes | _Repeat]) -> _Nodes:
    nodes: list[Sublayer | _Repeat] = []
    for item, equal in groupby(layers_or_loops):
        count = len(list(equal))
        if isinstance(item, _Repeat):
            nodes.extend([item] * count)
        elif count > 1 or _letters(item)[0] == "F" or _letters(item)[-1] == "A":
            nodes.append(_Repeat(count, item, "layers"))
        else:
            nodes.extend(item)
    return tuple(nodes)


def _letters(nodes: _Nodes) -> str:
    return re.sub("[^AF]", "", _text(nodes))


def _text(nodes: _Nodes) -> str:
    return " ".join(_node_text(node) for node in nodes)


def _node_text(node: Sublayer | _Repeat) -> str:
    if not isinstance(node, _Repeat):
        return LETTER_OF[node]
    if node.kind != "passes":
        return f"{node.count}x({_text(node.body)})"
    body = _text(node.body)
    return f"{body}{node.count}" if len(node.body) == 1 else f"({body}){node.count}"
