"""Hops: a task that needs several look-ups in a row.

A sequence lists a random permutation of n nodes as pairs `a b` (a leads to b), in random order, and
then asks questions `[k] x y`, where y is the node k hops from x. One look-up answers a question
of one hop; k hops take k look-ups in a row.

Token ids: nodes from 0, then `[1]`, `[2]`, ...
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from mixerloop.data.random import numbers_at
from mixerloop.data.tasks.settings_checks import check_sizes, check_variety
from mixerloop.data.tasks.task import Sequences, Task


@dataclass(frozen=True, kw_only=True)
class HopsSettings:
    """The size of the permutation, the number and length of questions, and the seed."""

    num_nodes: int = 8
    """Nodes in the permutation."""
    num_queries: int = 8
    """Questions in a sequence."""
    max_hops: int = 4
    """Hops are drawn from 1 to this many."""
    seed: int = 0
    """Random seed of the sequences."""

    def __post_init__(self) -> None:
        """Reject sizes without a question, and sizes so small that training repeats sequences."""
        check_sizes("hops", self, num_nodes=2, num_queries=1, max_hops=1)
        check_variety(self.log2_sequences())

    def log2_sequences(self) -> float:
        """The number of different sequences, in bits."""
        orders = 2 * math.lgamma(self.num_nodes + 1) / math.log(2)
        return orders + self.num_queries * math.log2(self.num_nodes * self.max_hops)


class Hops(Task[HopsSettings]):
    """Questions of 1 to `max_hops` hops over a permutation."""

    name = "hops"
    about = "A synthetic task that needs one look-up after another; only its settings are written."
    settings_type = HopsSettings
    group_name = "hops"

    @property
    def vocab_size(self) -> int:
        """Nodes, and one token for each number of hops."""
        return self.settings.num_nodes + self.settings.max_hops

    @property
    def num_answers(self) -> int:
        """An answer is a node, and the ids of nodes come first."""
        return self.settings.num_nodes

    @property
    def context(self) -> int:
        """Two tokens for each pair and three for each question, minus the last answer."""
        return 2 * self.settings.num_nodes + 3 * self.settings.num_queries - 1

    @property
    def groups(self) -> tuple[int, ...]:
        """The numbers of hops."""
        return tuple(range(1, self.settings.max_hops + 1))

    @property
    def title(self) -> str:
        """The task with the number of its nodes."""
        return f"hops over {self.settings.num_nodes} nodes"

    def answer_positions(self) -> Int[np.ndarray, " answers"]:
        """The last of the three tokens of each question."""
        first = 2 * self.settings.num_nodes + 2
        return np.arange(first, self.context + 1, 3)

    def sequences(self, indices: Int[np.ndarray, " sequences"]) -> Sequences:
        """Pairs in random order, then the questions; the groups are numbers of hops."""
        n, q = self.settings.num_nodes, self.settings.num_queries
        numbers = numbers_at(self.key, indices, 2 * n + 2 * q)
        leads_to, order, hops, start = np.split(numbers, [n, 2 * n, 2 * n + q], axis=1)
        leads_to = leads_to.argsort(axis=1, kind="stable")
        order = order.argsort(axis=1, kind="stable")
        hops = (hops % np.uint64(self.settings.max_hops)).astype(np.int64) + 1
        start = (start % np.uint64(n)).astype(np.int64)

        answer = start
        for hop in range(1, self.settings.max_hops + 1):
            answer = np.where(hops >= hop, np.take_along_axis(leads_to, answer, axis=1), answer)
        pairs = np.stack([order, np.take_along_axis(leads_to, order, axis=1)], axis=2)
        queries = np.stack([n + hops - 1, start, answer], axis=2)
        flat = [pairs.reshape(len(indices), -1), queries.reshape(len(indices), -1)]
        return Sequences(np.concatenate(flat, axis=1).astype(np.int64), hops)

    def guesses(
        self, tokens: Int[np.ndarray, "sequences tokens"]
    ) -> Int[np.ndarray, "sequences answers"]:
        """The best answers without a look-up in the list of pairs.

        A question that stood in the sequence before has the same answer again. For any other
        question the guess is the start node: it is the most likely end of two hops or more, because
        permutations have short cycles. In the held-out sequences of the default settings the guess
        is right for 0.22, 0.32, 0.32 and 0.43 of the questions of 1 to 4 hops.
        """
        answer_at = self.answer_positions()
        guesses = tokens[:, answer_at - 1].copy()
        questions = tokens[:, answer_at - 2] * self.vocab_size + tokens[:, answer_at - 1]
        for later in range(len(answer_at)):
            for earlier in range(later):
                is_repeat = questions[:, later] == questions[:, earlier]
                guesses[is_repeat, later] = tokens[is_repeat, answer_at[earlier]]
        return guesses

    def written(self, tokens: Int[np.ndarray, " tokens"]) -> str:
        """Pairs and questions, such as `3 2, 2 3 | [2] 3 3`."""
        n = self.settings.num_nodes
        words = [str(token) if token < n else f"[{token - n + 1}]" for token in tokens.tolist()]
        pairs = [" ".join(words[i : i + 2]) for i in range(0, 2 * n, 2)]
        queries = [" ".join(words[i : i + 3]) for i in range(2 * n, len(words), 3)]
        return f"{', '.join(pairs)} | {', '.join(queries)}"

    def longer(self) -> None:
        """None: more hops would take tokens that training never shows, such as `[5]`."""
