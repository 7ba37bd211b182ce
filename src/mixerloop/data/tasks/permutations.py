"""Permutations: a task that tracks a state, the product of more and more permutations.

A sequence holds one word of 2 factors, one of 3, and so on. A word is `a b c = y`: its factors are
permutations, and y is their product, which applies a first, then b, then c. Products within a word
are not written, so a word of k factors takes k - 1 products in a row.

The factors are drawn from a whole group: S3, which has 6 permutations, or S5, which has 120 and is
not solvable.

Token ids: permutations from 0 in lexicographic order, then `=`.
"""

import itertools
import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Self

import numpy as np
from jaxtyping import Int

from mixerloop.data.random import numbers_at
from mixerloop.data.tasks.drawing import below
from mixerloop.data.tasks.settings_checks import check_sizes, check_variety
from mixerloop.data.tasks.task import Sequences, Task

GROUPS = (3, 5)
"""The numbers of elements that are permuted: S3 and S5."""


@dataclass(frozen=True, kw_only=True)
class PermutationsSettings:
    """The group, the length of the words, and the seed."""

    num_elements: int = 3
    """Elements that are permuted, 3 or 5: 6 or 120 permutations."""
    max_factors: int = 10
    """Words have from 2 to this many factors, one word of each length."""
    seed: int = 0
    """Random seed of the sequences."""

    def __post_init__(self) -> None:
        """Reject other groups, and sizes so small that training repeats sequences."""
        if self.num_elements not in GROUPS:
            raise ValueError(f"permutations.num_elements must be 3 or 5, got {self.num_elements}")
        check_sizes("permutations", self, max_factors=2)
        check_variety(self.log2_sequences())

    def log2_sequences(self) -> float:
        """The number of different sequences, in bits."""
        num_factors = self.max_factors * (self.max_factors + 1) // 2 - 1
        return num_factors * math.log2(math.factorial(self.num_elements))


class Permutations(Task[PermutationsSettings]):
    """Words of 2 to `max_factors` permutations, each with its product."""

    name = "permutations"
    about = "A synthetic task that multiplies permutations in a row; only its settings are written."
    settings_type = PermutationsSettings
    group_name = "factors"

    @property
    def vocab_size(self) -> int:
        """Permutations and `=`."""
        return self.num_answers + 1

    @property
    def num_answers(self) -> int:
        """An answer is a permutation, and the ids of permutations come first."""
        return math.factorial(self.settings.num_elements)

    @property
    def context(self) -> int:
        """Two tokens more than factors for each word, minus the last answer."""
        return int(self.answer_positions()[-1])

    @property
    def groups(self) -> tuple[int, ...]:
        """The numbers of factors of the words, in the order of the words."""
        return tuple(range(2, self.settings.max_factors + 1))

    @property
    def title(self) -> str:
        """The task with its group and the length of its words."""
        num_elements, most = self.settings.num_elements, self.settings.max_factors
        return f"products of 2 to {most} permutations of {num_elements} elements"

    def answer_positions(self) -> Int[np.ndarray, " answers"]:
        """The last token of each word, after its factors and `=`."""
        return np.cumsum(np.array(self.groups) + 2) - 1

    def sequences(self, indices: Int[np.ndarray, " sequences"]) -> Sequences:
        """Words of growing length; the groups are numbers of factors."""
        products = product_table(self.settings.num_elements)
        numbers = numbers_at(self.key, indices, sum(self.groups))
        factors = below(self.num_answers, numbers)
        equals = np.full((len(indices), 1), self.num_answers)
        parts = []
        for word in np.split(factors, np.cumsum(self.groups)[:-1], axis=1):
            product = word[:, 0]
            for factor in word.T[1:]:
                product = products[product, factor]
            parts += [word, equals, product[:, None]]
        groups = np.broadcast_to(self.groups, (len(indices), len(self.groups)))
        return Sequences(np.concatenate(parts, axis=1), groups)

    def guesses(
        self, tokens: Int[np.ndarray, "sequences tokens"]
    ) -> Int[np.ndarray, "sequences answers"]:
        """The last factor of each word.

        If a single factor is unknown, all products are equally likely, so no guess is better than
        another: it is right for 1 of 6 words of S3, and for 0.17 of the words in the held-out
        sequences of the default settings.
        """
        return tokens[:, self.answer_positions() - 2]

    def written(self, tokens: Int[np.ndarray, " tokens"]) -> str:
        """Words of permutations, such as `102 021 = 201`; 102 exchanges the elements 0 and 1."""
        digits = itertools.permutations(map(str, range(self.settings.num_elements)))
        words = [*map("".join, digits), "="]
        ends = (self.answer_positions() + 1).tolist()
        return ", ".join(
            " ".join(words[token] for token in tokens[first:end])
            for first, end in itertools.pairwise([0, *ends])
        )

    def longer(self) -> Self:
        """Words of up to twice as many factors."""
        return self.longer_with(replace(self.settings, max_factors=2 * self.settings.max_factors))


@cache
def product_table(num_elements: int) -> Int[np.ndarray, "first second"]:
    """The id of the permutation that applies the first one and then the second one."""
    images = np.array(list(itertools.permutations(range(num_elements))))
    digits = num_elements ** np.arange(num_elements)[::-1]
    products = images[:, images].swapaxes(0, 1)  # [first, second, elements]
    return np.searchsorted(images @ digits, products @ digits)
