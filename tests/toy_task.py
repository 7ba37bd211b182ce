"""A synthetic task in one file: copy the symbol that stands some places before the end of a list.

A sequence lists random symbols and then asks questions `[k] y`, where y is the symbol k places
before the end of the list.
"""

from dataclasses import dataclass

import numpy as np

from mixerloop.data.random import numbers_at
from mixerloop.data.tasks.task import Sequences, Task


@dataclass(frozen=True, kw_only=True)
class CopySettings:
    """The size of the list and of the questions."""

    num_symbols: int = 6
    """Different symbols."""
    length: int = 8
    """Symbols in the list."""
    num_queries: int = 5
    """Questions in a sequence."""
    max_distance: int = 3
    """The symbol asked for stands at most so many places before the end of the list."""
    seed: int = 0
    """Seed of the sequences."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_distance <= self.length:
            raise ValueError(
                f"copy.max_distance must be from 1 to the length, got {self.max_distance}"
            )


class Copy(Task[CopySettings]):
    name = "copy"
    about = "A task that copies symbols from a list."
    settings_type = CopySettings
    group_name = "places"

    @property
    def vocab_size(self) -> int:
        return self.settings.num_symbols + self.settings.max_distance

    @property
    def num_answers(self) -> int:
        return self.settings.num_symbols

    @property
    def context(self) -> int:
        return self.settings.length + 2 * self.settings.num_queries - 1

    @property
    def groups(self) -> tuple[int, ...]:
        return tuple(range(1, self.settings.max_distance + 1))

    @property
    def title(self) -> str:
        return f"copies of {self.settings.num_symbols} symbols"

    def answer_positions(self) -> np.ndarray:
        return np.arange(self.settings.length + 1, self.context + 1, 2)

    def sequences(self, indices: np.ndarray) -> Sequences:
        length, num_queries = self.settings.length, self.settings.num_queries
        drawn = numbers_at(self.key, indices, length + num_queries)
        symbols = (drawn[:, :length] % np.uint64(self.settings.num_symbols)).astype(np.int64)
        places = (drawn[:, length:] % np.uint64(self.settings.max_distance)).astype(np.int64) + 1
        answers = np.take_along_axis(symbols, length - places, axis=1)
        queries = np.stack([self.settings.num_symbols + places - 1, answers], axis=2)
        tokens = np.concatenate([symbols, queries.reshape(len(indices), -1)], axis=1)
        return Sequences(tokens, places)

    def guesses(self, tokens: np.ndarray) -> np.ndarray:
        """The last symbol of the list."""
        last = tokens[:, self.settings.length - 1]
        return np.repeat(last[:, None], self.settings.num_queries, axis=1)

    def written(self, tokens: np.ndarray) -> str:
        first = self.settings.num_symbols
        return " ".join(str(t) if t < first else f"[{t - first + 1}]" for t in tokens.tolist())
