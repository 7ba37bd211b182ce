"""Slow solvers of the synthetic tasks, written from the definitions of the tasks.

A solver reads a sequence from left to right and gives, for each question, the position of the
answer, the answer, and the difficulty that the question's group should have.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Solved(NamedTuple):
    """A question with its right answer."""

    position: int
    answer: int
    difficulty: int


def solve_hops(settings: Any, row: list[int]) -> Iterator[Solved]:
    """Follow the pairs."""
    n = settings.num_nodes
    leads_to = dict(zip(row[0 : 2 * n : 2], row[1 : 2 * n : 2], strict=True))
    for at in range(2 * n, len(row), 3):
        num_hops, node = row[at] - n + 1, row[at + 1]
        for _ in range(num_hops):
            node = leads_to[node]
        yield Solved(at + 2, node, num_hops)


def solve_permutations(settings: Any, row: list[int]) -> Iterator[Solved]:
    """Send each element through all factors of a word."""
    elements = range(settings.num_elements)
    permutations = list(itertools.permutations(elements))
    at = 0
    while at < len(row):
        equals = row.index(len(permutations), at)
        factors = [permutations[token] for token in row[at:equals]]
        images = []
        for element in elements:
            for factor in factors:
                element = factor[element]
            images.append(element)
        yield Solved(equals + 1, permutations.index(tuple(images)), len(factors))
        at = equals + 2


def solve_recall(settings: Any, row: list[int]) -> Iterator[Solved]:
    """Keep the pairs in a dictionary; a key that is in it is asked for."""
    value_of, asked = {}, set()
    for at in range(0, len(row), 2):
        key, value = row[at], row[at + 1]
        assert settings.num_values <= key
        if key in value_of:
            assert key not in asked
            asked.add(key)
            yield Solved(at + 1, value_of[key], len(value_of))
        else:
            value_of[key] = value


def solve_brackets(settings: Any, row: list[int]) -> Iterator[Solved]:
    """Keep the open brackets in a list; a bracket that does not close the last one fails."""
    num_kinds, due = settings.num_kinds, []
    openings = range(num_kinds, 2 * num_kinds)
    for at, token in enumerate(row):
        if token == 2 * num_kinds:
            last_opening = max(place for place in range(at) if row[place] in openings)
            assert 2 <= len(due) <= 5
            yield Solved(at + 1, due[-1], at - last_opening - 1)
        elif token >= num_kinds:
            due.append(token - num_kinds)
        else:
            assert due.pop() == token


def solve_arithmetic(settings: Any, row: list[int]) -> Iterator[Solved]:
    """Evaluate by recursion."""
    modulus, at = settings.modulus, 0

    def evaluate() -> tuple[int, int]:
        """The value of the expression at this place, and its number of operations."""
        nonlocal at
        token, at = row[at], at + 1
        if token < modulus:
            return token, 0
        (left, left_size), (right, right_size) = evaluate(), evaluate()
        value = {"+": left + right, "-": left - right, "*": left * right}["+-*"[token - modulus]]
        return value % modulus, left_size + right_size + 1

    while at < len(row):
        value, num_operations = evaluate()
        assert row[at] == modulus + 3
        yield Solved(at + 1, value, num_operations)
        at += 2


def solve_edits(settings: Any, row: list[int]) -> Iterator[Solved]:
    """Edit a list."""
    pad, replace, insert, delete, equals = range(settings.num_symbols, settings.num_symbols + 5)
    first_edit = settings.length + settings.max_edits
    text = [token for token in row[:first_edit] if token != pad]
    assert row[:first_edit] == text + [pad] * (first_edit - len(text))
    begin = row.index(equals)
    edits = [row[at : at + 3] for at in range(first_edit, begin, 3)]
    seen, num_edits = set(text), 0
    assert len(seen) == len(text)
    for kind, old, new in edits:
        if kind == pad:
            assert (old, new) == (pad, pad)
            continue
        place, num_edits = text.index(old), num_edits + 1
        assert num_edits == edits.index([kind, old, new]) + 1  # pads come last
        if kind == delete:
            assert new == pad
            del text[place]
            continue
        assert new not in seen
        seen.add(new)
        if kind == replace:
            text[place] = new
        else:
            assert kind == insert
            text.insert(place + 1, new)
    for at, symbol in enumerate(text):
        yield Solved(begin + 1 + at, symbol, num_edits)


SOLVERS: dict[str, Callable[[Any, list[int]], Iterator[Solved]]] = {
    "hops": solve_hops,
    "permutations": solve_permutations,
    "recall": solve_recall,
    "brackets": solve_brackets,
    "arithmetic": solve_arithmetic,
    "edits": solve_edits,
}
