"""Peak memory of one training step, with and without recomputing each occurrence.

    python benchmarks/training_memory.py                       # 15m, full_loop, 4 x 1,024, float32
    python benchmarks/training_memory.py --loops no_loop mixer_loop full_loop --json

The correctness gate: both ways leave the same gradient, bit for bit.
"""

import argparse
import json
from dataclasses import replace

import torch

from mixerloop.benchmarking.measure import header, peak_bytes
from mixerloop.config import preset
from mixerloop.model.initialization import fresh_model
from mixerloop.ops.precision import compute_in
from mixerloop.training.loss import Loss
from mixerloop.training.optimizer import make_optimizer

TARGET = 0.5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="15m")
    parser.add_argument("--loops", nargs="+", default=["full_loop"])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--compute-dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cases = [measure(loop, options) for loop in options.loops]
    if options.json:
        print(json.dumps({"machine": header(), **vars(options), "cases": cases}, indent=2))
    else:
        print(header())
        print(f"{options.size}, {options.batch} x {options.context}, {options.compute_dtype}")
        print("loop         kept MiB  recomputed MiB  ratio")
        for case in cases:
            kept, recomputed = case["kept"] / 2**20, case["recomputed"] / 2**20
            print(f"{case['loop']:12} {kept:8,.0f}  {recomputed:14,.0f}  {case['ratio']:.3f}")
    if any(case["loop"] == "full_loop" and case["ratio"] > TARGET for case in cases):
        raise SystemExit("recomputing keeps more than half")


def measure(loop: str, options: argparse.Namespace) -> dict:
    config = replace(preset(options.size), schedule=loop)
    tokens = torch.randint(config.vocab_size, (options.batch, options.context))
    peaks, gradients = {}, []
    for name, recompute in (("kept", False), ("recomputed", True)):
        model = fresh_model(config, seed=0)
        loss = Loss(model, recompute=recompute)
        optimizer = make_optimizer(model, peak_lr=1e-4, weight_decay=0.1)

        def step(loss=loss, optimizer=optimizer) -> None:
            with compute_in(options.compute_dtype, "cpu"):
                summed = loss(tokens, tokens).total
            summed.backward()
            optimizer.step()

        peaks[name] = peak_bytes(step)
        gradients.append([parameter.grad for parameter in model.parameters()])
    if not all(torch.equal(one, other) for one, other in zip(*gradients, strict=True)):
        raise SystemExit(f"{loop}: recomputing changes the gradient")
    return {"loop": loop, **peaks, "ratio": peaks["recomputed"] / peaks["kept"]}


if __name__ == "__main__":
    main()
