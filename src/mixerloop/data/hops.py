"""Hops: a task that needs one look-up after another, made on the fly.

A sequence lists a random permutation of n nodes as pairs `a b` (a leads to b), in random order, and
then asks: `[k] x y`, where y is the node k hops from x. The answers stand in the sequence as in any
text, and only they are scored. One look-up answers one hop; k hops take k look-ups in a row.

Token ids: nodes from 0, then `[1]`, `[2]`, ... Sequence i of a split depends on settings and i.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from mixerloop.data.random import numbers_at, stream_key
from mixerloop.data.sources import Split
from mixerloop.files import json_text, new_folder, write_file

FORMAT = "mixerloop-hops-1"
NOT_SCORED = -100  # torch's own label for positions without a target
SMALLEST_LOG2_SEQUENCES = 40  # 10^7 training sequences then meet 4,096 held-out ones 0.04 times
NUM_SEQUENCES = {"train": 2**40, "held_out": 2**12}
"""Training never sees a sequence twice; the held-out ones are a fixed set."""


@dataclass(frozen=True, kw_only=True)
class HopsSettings:
    """The size of the puzzle."""

    num_nodes: int = 8
    """Nodes in the permutation."""
    num_queries: int = 8
    """Questions in a sequence."""
    max_hops: int = 4
    """Hops are drawn from 1 to this many."""
    seed: int = 0
    """Seed of the sequences."""

    def __post_init__(self) -> None:
        """Refuse puzzles without a question."""
        for name, least in (("num_nodes", 2), ("num_queries", 1), ("max_hops", 1), ("seed", 0)):
            if not least <= (value := getattr(self, name)) <= 2**20:
                raise ValueError(f"hops.{name} must be from {least} to 2^20, got {value}")
        if self.log2_sequences() < SMALLEST_LOG2_SEQUENCES:
            raise ValueError("so small a puzzle repeats itself, and what is held out is trained on")

    def log2_sequences(self) -> float:
        """The number of different sequences, in bits."""
        orders = 2 * math.lgamma(self.num_nodes + 1) / math.log(2)
        return orders + self.num_queries * math.log2(self.num_nodes * self.max_hops)


class Hops:
    """The sequences of one split, as windows."""

    def __init__(self, settings: HopsSettings, split: Split) -> None:
        self.settings = settings
        self.num_windows = NUM_SEQUENCES[split]
        self.vocab_size = settings.num_nodes + settings.max_hops
        self.context = 2 * settings.num_nodes + 3 * settings.num_queries - 1
        self._key = stream_key("hops", settings.seed, split)

    def read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels of these sequences, [num, context] each."""
        sequences, _ = self.sequences(indices)
        labels = np.full((len(indices), self.context), NOT_SCORED, dtype=np.int64)
        answers = self.answer_positions() - 1
        labels[:, answers] = sequences[:, answers + 1]
        return sequences[:, :-1], labels

    def answer_positions(self) -> np.ndarray:
        """Where the answers stand in a sequence."""
        first = 2 * self.settings.num_nodes + 2
        return np.arange(first, self.context + 1, 3)

    def sequences(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whole sequences [num, tokens], and the hops of their questions [num, num_queries]."""
        n, q = self.settings.num_nodes, self.settings.num_queries
        numbers = numbers_at(self._key, indices, 2 * n + 2 * q)
        leads_to, order, hops, asked = np.split(numbers, [n, 2 * n, 2 * n + q], axis=1)
        leads_to = leads_to.argsort(axis=1, kind="stable")
        order = order.argsort(axis=1, kind="stable")
        hops = (hops % np.uint64(self.settings.max_hops)).astype(np.int64) + 1
        asked = (asked % np.uint64(n)).astype(np.int64)

        answer = asked
        for hop in range(1, self.settings.max_hops + 1):
            answer = np.where(hops >= hop, np.take_along_axis(leads_to, answer, axis=1), answer)
        pairs = np.stack([order, np.take_along_axis(leads_to, order, axis=1)], axis=2)
        queries = np.stack([n + hops - 1, asked, answer], axis=2)
        flat = [pairs.reshape(len(indices), -1), queries.reshape(len(indices), -1)]
        return np.concatenate(flat, axis=1).astype(np.int64), hops


def write_hops(folder: Path, settings: HopsSettings) -> None:
    """A folder that stands for the task: there is nothing to store but its settings."""
    with new_folder(folder) as new:
        manifest = {"format": FORMAT, "settings": asdict(settings)}
        write_file(new / "manifest.json", json_text(manifest))
