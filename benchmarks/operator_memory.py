"""Peak memory of the chunked gated delta rule: backward by hand beside autograd's own.

    python benchmarks/operator_memory.py [--json]

Both run the same chunk equations, forward and backward, at batch 4 x 1,024 tokens in float32; the
gradients are compared first. What is counted is what torch allocates beyond the inputs.
"""

import json
import sys

import torch
import torch.nn.functional as F

from mixerloop import machine
from mixerloop.benchmarking.measure import header, peak_bytes
from mixerloop.ops import chunked

BATCH, TOKENS = 4, 1024
HEADS = {"15m": (4, 72), "110m": (12, 64)}
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


def by_autograd(tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    *tokens, initial_state = tensors.values()
    chunks = chunked.Chunks(*map(chunked.to_chunks, tokens))
    output, _, _ = chunked.forward(chunks, initial_state)
    output = chunked.from_chunks(output, TOKENS)
    return torch.autograd.grad(output.square().sum(), list(tensors.values()))


def main() -> None:
    machine.settle()
    rows = []
    for size, (num_heads, d_head) in HEADS.items():
        tensors = inputs(num_heads, d_head)
        for one, other in zip(by_hand(tensors), by_autograd(tensors), strict=True):
            torch.testing.assert_close(
                one, other, rtol=0, atol=TOLERANCE * other.abs().max().item()
            )
        hand = peak_bytes(lambda tensors=tensors: by_hand(tensors))
        autograd = peak_bytes(lambda tensors=tensors: by_autograd(tensors))
        rows.append(
            {"size": size, "by_hand": hand, "by_autograd": autograd, "ratio": hand / autograd}
        )
    if "--json" in sys.argv:
        print(json.dumps({"machine": machine.facts(), "cases": rows}, indent=2))
        return
    print(f"# {header()}")
    print(f"peak MiB, forward + backward, batch {BATCH} x {TOKENS} tokens, float32")
    for row in rows:
        mib = {name: row[name] / 2**20 for name in ("by_hand", "by_autograd")}
        print(
            f"{row['size']:>5}: by hand {mib['by_hand']:6.1f}, "
            f"autograd {mib['by_autograd']:6.1f}, ratio {row['ratio']:.2f}"
        )


if __name__ == "__main__":
    main()
