"""A few examples of prepared data, as text."""

from pathlib import Path
from typing import get_args

import numpy as np

from mixerloop.data.hops import Hops, HopsSettings
from mixerloop.data.shards import TokenSplit, open_tokenizer, read_manifest
from mixerloop.data.sources import Split


def token_samples(folder: Path, num: int, characters: int) -> dict[str, list[str]]:
    """The beginnings of documents spread over each split, decoded."""
    tokenizer = open_tokenizer(folder, read_manifest(folder))
    samples: dict[str, list[str]] = {}
    for split in get_args(Split):
        tokens = TokenSplit(folder, split)
        starts = tokens.document_starts()
        ends = np.append(starts[1:], len(tokens))
        chosen = np.unique(np.linspace(0, len(starts) - 1, num).astype(int)) if len(starts) else []
        samples[split] = []
        for index in chosen:
            start = int(starts[index])
            stop = min(int(ends[index]), start + characters)
            samples[split].append(tokenizer.decode(tokens.read(start, stop).tolist())[:characters])
    return samples


def hops_samples(settings: HopsSettings, num: int) -> dict[str, list[str]]:
    """Sequences, written out."""
    names = [*range(settings.num_nodes), *(f"[{k + 1}]" for k in range(settings.max_hops))]
    samples: dict[str, list[str]] = {}
    for split in get_args(Split):
        sequences, _ = Hops(settings, split).sequences(np.arange(num))
        samples[split] = [_written(row, names, settings.num_nodes) for row in sequences.tolist()]
    return samples


def _written(row: list[int], names: list[object], num_nodes: int) -> str:
    words = [str(names[token]) for token in row]
    pairs = [" ".join(words[i : i + 2]) for i in range(0, 2 * num_nodes, 2)]
    queries = [" ".join(words[i : i + 3]) for i in range(2 * num_nodes, len(words), 3)]
    return f"{', '.join(pairs)} | {', '.join(queries)}"
