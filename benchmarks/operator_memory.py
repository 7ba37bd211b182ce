"""Peak memory of the chunked gated delta rule: backward by hand beside autograd's own.

    python benchmarks/operator_memory.py [--json]

All run the same chunk equations, forward and backward, at batch 4 x 1,024 tokens in float32; the
gradients are compared first. Autograd goes through them tile by tile, as the backward by hand does,
and all at once. What is counted is what torch allocates beyond the inputs. The exit code is 1 when
the backward by hand needs more than half of the smaller of the two.
"""

import json
import sys
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from mixerloop import machine
from mixerloop.benchmarking.measure import header, peak_bytes
from mixerloop.ops import chunked

BATCH, TOKENS = 4, 1024
HEADS = {"15m": (4, 72), "110m": (12, 64)}
LIMIT = 0.5
TOLERANCE = 1e-4  # float32, two orders of summation over 1,024 tokens


def inputs(num_heads: int, d_head: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    tensors = {
        "query": F.normalize(normal(BATCH, TOKENS, num_heads, d_head), dim=-1) * d_head**-0.5,
        "key": F.normalize(normal(BATCH, TOKENS, num_heads, d_head), dim=-1),
        "value": normal(BATCH, TOKENS, num_heads, d_head),
        "log_decay": -normal(BATCH, TOKENS, num_heads).square() / 8,
        "write_strength": normal(BATCH, TOKENS, num_heads).sigmoid(),
        "initial_state": normal(BATCH, num_heads, d_head, d_head),
    }
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def by_hand(tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    output, _ = chunked.chunked_gated_delta_rule(**tensors)
    return torch.autograd.grad(output.square().sum(), list(tensors.values()))


def by_autograd(tensors: dict[str, torch.Tensor], *, tiled: bool) -> tuple[torch.Tensor, ...]:
    *tokens, initial_state = tensors.values()
    batch, seq, heads, _ = tensors["value"].shape
    tiles = chunked.tiles(batch, seq, heads) if tiled else [(slice(None), slice(None))]
    loss = torch.zeros(())
    for rows, columns in tiles:
        chunks = chunked.Chunks(*(chunked.to_chunks(x[rows, :, columns]) for x in tokens))
        output, _, _ = chunked.forward(chunks, initial_state[rows, columns])
        loss = loss + chunked.from_chunks(output, seq).square().sum()
    return torch.autograd.grad(loss, list(tensors.values()))


def compare(size: str) -> dict[str, Any]:
    tensors = inputs(*HEADS[size])
    ways = {
        "by_hand": partial(by_hand, tensors),
        "autograd_by_tile": partial(by_autograd, tensors, tiled=True),
        "autograd_at_once": partial(by_autograd, tensors, tiled=False),
    }
    reference = ways["autograd_at_once"]()
    for way in ways.values():
        for one, other in zip(way(), reference, strict=True):
            tolerance = TOLERANCE * other.abs().max().item()
            torch.testing.assert_close(one, other, rtol=0, atol=tolerance)
    mib = {name: peak_bytes(way) / 2**20 for name, way in ways.items()}
    ratio = mib["by_hand"] / min(mib["autograd_by_tile"], mib["autograd_at_once"])
    return {"size": size, "peak_mib": mib, "ratio": ratio, "passed": ratio <= LIMIT}


def main() -> None:
    machine.keep_off_hidden_amx()
    rows = [compare(size) for size in HEADS]
    if "--json" in sys.argv:
        print(json.dumps({"machine": machine.facts(), "cases": rows}, indent=2))
    else:
        print(f"# {header()}")
        print(f"peak MiB, forward + backward, batch {BATCH} x {TOKENS} tokens, float32")
        print("size   by hand   autograd by tile   autograd at once   ratio to the smaller")
        for row in rows:
            hand, by_tile, at_once = row["peak_mib"].values()
            print(
                f"{row['size']:4} {hand:9.1f} {by_tile:18.1f} {at_once:18.1f} {row['ratio']:22.2f}"
            )
    sys.exit(not all(row["passed"] for row in rows))


if __name__ == "__main__":
    main()
