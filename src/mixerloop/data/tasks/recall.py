"""Recall: a task that looks up one of many pairs, as in multi-query associative recall.

A sequence is made of blocks. A block lists new pairs `key value` and then asks questions, which are
pairs again: the key of any pair so far, and its value as the answer. The keys of a sequence are all
different, and no key is asked for twice. One look-up answers every question; the number of pairs to
choose from grows from block to block.

Token ids: values from 0, then keys.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from jaxtyping import Int

from mixerloop.data.random import numbers_at
from mixerloop.data.tasks.drawing import below
from mixerloop.data.tasks.settings_checks import check_sizes, check_variety
from mixerloop.data.tasks.task import Sequences, Task

LAST = np.iinfo(np.uint64).max
"""Behind all random numbers, in the order in which pairs are asked for."""


@dataclass(frozen=True, kw_only=True)
class RecallSettings:
    """The number of keys and values, the size of the blocks, and the seed."""

    num_keys: int = 32
    """Different keys; a sequence uses some of them, each in one pair."""
    num_values: int = 8
    """Different values."""
    num_blocks: int = 8
    """Blocks in a sequence."""
    num_pairs: int = 2
    """New pairs in a block."""
    num_queries: int = 1
    """Questions in a block, at most as many as new pairs."""
    seed: int = 0
    """Random seed of the sequences."""

    def __post_init__(self) -> None:
        """Reject sizes without a question, too few keys, and too few different sequences."""
        least = {"num_keys": 2, "num_values": 2, "num_blocks": 1, "num_pairs": 1, "num_queries": 1}
        check_sizes("recall", self, **least)
        if self.num_keys < self.all_pairs:
            raise ValueError(
                f"recall.num_keys must be at least num_blocks * num_pairs = {self.all_pairs}, "
                f"got {self.num_keys}"
            )
        if self.num_queries > self.num_pairs:
            raise ValueError(
                f"recall.num_queries must be at most num_pairs = {self.num_pairs}, "
                f"got {self.num_queries}"
            )
        check_variety(self.log2_sequences())

    @property
    def all_pairs(self) -> int:
        """Pairs in a sequence."""
        return self.num_blocks * self.num_pairs

    def log2_sequences(self) -> float:
        """The number of different lists of pairs, in bits, whatever is asked."""
        keys = math.lgamma(self.num_keys + 1) - math.lgamma(self.num_keys - self.all_pairs + 1)
        return keys / math.log(2) + self.all_pairs * math.log2(self.num_values)


class Recall(Task[RecallSettings]):
    """Questions about pairs of keys and values, of which there are more and more."""

    name = "recall"
    about = "A synthetic task that looks up one of many pairs; only its settings are written."
    settings_type = RecallSettings
    group_name = "pairs"

    @property
    def vocab_size(self) -> int:
        """Values and keys."""
        return self.settings.num_values + self.settings.num_keys

    @property
    def num_answers(self) -> int:
        """An answer is a value, and the ids of values come first."""
        return self.settings.num_values

    @property
    def context(self) -> int:
        """Two tokens for each pair and each question, minus the last answer."""
        settings = self.settings
        return 2 * settings.num_blocks * (settings.num_pairs + settings.num_queries) - 1

    @property
    def groups(self) -> tuple[int, ...]:
        """The numbers of pairs that were listed before a question, in the order of the blocks."""
        num_pairs = self.settings.num_pairs
        return tuple(range(num_pairs, self.settings.all_pairs + 1, num_pairs))

    @property
    def title(self) -> str:
        """The task with the largest number of its pairs."""
        return f"recall of up to {self.settings.all_pairs} pairs"

    def answer_positions(self) -> Int[np.ndarray, " answers"]:
        """The second token of each question."""
        pairs, queries = 2 * self.settings.num_pairs, 2 * self.settings.num_queries
        blocks = np.arange(self.settings.num_blocks) * (pairs + queries)
        return (blocks[:, None] + np.arange(pairs + 1, pairs + queries, 2)).ravel()

    def sequences(self, indices: Int[np.ndarray, " sequences"]) -> Sequences:
        """Blocks of new pairs and questions; the groups are numbers of pairs so far."""
        settings, num_pairs = self.settings, self.settings.all_pairs
        ends = np.cumsum([settings.num_keys, num_pairs, settings.num_blocks * num_pairs])
        numbers = numbers_at(self.key, indices, int(ends[-1]))
        keys, values, order = np.split(numbers, ends[:-1], axis=1)
        keys = settings.num_values + keys.argsort(axis=1, kind="stable")[:, :num_pairs]
        pairs = np.stack([keys, below(settings.num_values, values)], axis=2)

        asked = np.zeros((len(indices), 0), dtype=np.int64)
        for listed, drawn in zip(self.groups, np.split(order, settings.num_blocks, 1), strict=True):
            np.put_along_axis(drawn, asked, LAST, axis=1)
            first = drawn[:, :listed].argsort(axis=1, kind="stable")[:, : settings.num_queries]
            asked = np.concatenate([asked, first], axis=1)
        queries = np.take_along_axis(pairs, asked[:, :, None], axis=1)
        blocks = [part.reshape(len(indices), settings.num_blocks, -1) for part in (pairs, queries)]
        tokens = np.concatenate(blocks, axis=2).reshape(len(indices), -1)
        groups = np.repeat(self.groups, settings.num_queries)
        return Sequences(tokens, np.broadcast_to(groups, asked.shape))

    def guesses(
        self, tokens: Int[np.ndarray, "sequences tokens"]
    ) -> Int[np.ndarray, "sequences answers"]:
        """The best answers without a look-up among the pairs.

        The guess is the value of most pairs among those that are listed and not yet asked for. In
        the held-out sequences of the default settings it is right for 0.56, 0.44, 0.41, 0.40,
        0.36, 0.36, 0.32 and 0.32 of the questions after 2, 4, and so on up to 16 pairs.
        """
        settings, every_value = self.settings, np.arange(self.settings.num_values)
        blocks = tokens.reshape(len(tokens), settings.num_blocks, -1)
        listed = blocks[:, :, 1 : 2 * settings.num_pairs : 2]  # [sequences, blocks, pairs]
        listed = (listed[..., None] == every_value).sum(axis=2).cumsum(axis=1)
        answered = tokens[:, self.answer_positions(), None] == every_value
        answered = answered.cumsum(axis=1) - answered  # before each question
        left = np.repeat(listed, settings.num_queries, axis=1) - answered
        return left.argmax(axis=2)

    def written(self, tokens: Int[np.ndarray, " tokens"]) -> str:
        """Pairs and questions of each block, such as `k3=5, k0=1; k3? 5`."""
        settings, blocks = self.settings, []
        for block in tokens.reshape(settings.num_blocks, -1, 2).tolist():
            written = [(f"k{key - settings.num_values}", str(value)) for key, value in block]
            pairs = ", ".join(map("=".join, written[: settings.num_pairs]))
            blocks.append(f"{pairs}; {', '.join(map('? '.join, written[settings.num_pairs :]))}")
        return " | ".join(blocks)

    def longer(self) -> Self | None:
        """Twice as many blocks, and so twice as many pairs; None if the keys do not suffice."""
        if self.settings.num_keys < 2 * self.settings.all_pairs:
            return None
        return self.longer_with(replace(self.settings, num_blocks=2 * self.settings.num_blocks))
