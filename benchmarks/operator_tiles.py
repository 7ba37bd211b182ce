"""How the chunked gated delta rule was tuned: chunk and tile sizes by time and memory.

    python benchmarks/operator_tiles.py [--json]

One row per choice at (batch 4, 1,024 tokens, 4 heads of 72), float32; times are medians of calls in
turn. The correctness of every choice is a property test in tests/parity.
"""

import json
import sys
from functools import partial

import torch
from operator_memory import HEADS, by_hand, inputs

from mixerloop import machine
from mixerloop.benchmarking.measure import header, interleaved, peak_bytes
from mixerloop.ops import chunked

CHUNKS = [16, 32, 64, 128]
TILES = [1024, 2048, 4096, 8192, 10**9]


def chosen(chunk_tokens: int, tile_tokens: int, function: partial) -> object:
    chunked.CHUNK_TOKENS, chunked.TILE_TOKENS = chunk_tokens, tile_tokens
    return function()


def main() -> None:
    machine.keep_off_hidden_amx()
    tensors = inputs(*HEADS["15m"])
    detached = {name: tensor.detach() for name, tensor in tensors.items()}
    ways = {
        "forward": partial(chunked.chunked_gated_delta_rule, **detached),
        "both": partial(by_hand, tensors),
    }
    calls = {
        (chunk, tile, name): partial(chosen, chunk, tile, way)
        for chunk in CHUNKS
        for tile in TILES
        for name, way in ways.items()
    }
    torch.manual_seed(0)
    times = interleaved(calls, warmup=1, repeats=7)
    rows = [
        {
            "chunk_tokens": chunk,
            "tile_tokens": tile,
            "forward_ms": times[chunk, tile, "forward"].milliseconds.median,
            "forward_backward_ms": times[chunk, tile, "both"].milliseconds.median,
            "peak_mib": peak_bytes(calls[chunk, tile, "both"]) / 2**20,
        }
        for chunk in CHUNKS
        for tile in TILES
    ]
    if "--json" in sys.argv:
        print(json.dumps({"machine": machine.facts(), "cases": rows}, indent=2))
        return
    print(f"# {header()}")
    print("chunk   tile    forward ms   forward+backward ms   peak MiB")
    for row in rows:
        tile = row["tile_tokens"] if row["tile_tokens"] < 10**9 else "all"
        print(
            f"{row['chunk_tokens']:5} {tile:>6} {row['forward_ms']:13.1f} "
            f"{row['forward_backward_ms']:21.1f} {row['peak_mib']:10.1f}"
        )


if __name__ == "__main__":
    main()
