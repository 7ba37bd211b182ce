"""The gated delta rule: our implementations beside the CPU form `transformers` has.

    python benchmarks/operator_speed.py [--json] [--strong-decay]

Forward, and forward with backward, in float32, in turn, so that what disturbs the machine disturbs
all alike. Outputs are compared first. `transformers` comes with `make peers`.
"""

import argparse
import importlib.util
import inspect
import json
from typing import Any

import torch
import torch.nn.functional as F

from mixerloop import machine
from mixerloop.benchmarking.measure import header, interleaved
from mixerloop.ops import native_library
from mixerloop.ops.gated_delta_rule import gated_delta_rule

SHAPES = {"15m": (4, 1024, 4, 72), "110m": (2, 1024, 12, 64), "long": (1, 8192, 4, 72)}
AGREE = 1e-4  # float32, two orders of summation


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--strong-decay",
        action="store_true",
        help="decays down to -8, which make subnormal numbers",
    )
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    machine.settle()
    rows = [
        measure(name, make_inputs(*shape, strong=options.strong_decay), options.repeats)
        for name, shape in SHAPES.items()
    ]
    if options.json:
        print(json.dumps({"machine": header(), "shapes": rows}, indent=2))
        return
    print(header())
    for row in rows:
        print(f"\n{row['name']}: batch, tokens, heads, head size {tuple(row['shape'])}")
        for name, times in row["milliseconds"].items():
            print(f"  {name:13} {times['forward']:7.1f} ms  {times['forward_backward']:7.1f} ms")
        if "ratio_forward" in row:
            forward, both = row["ratio_forward"], row["ratio_forward_backward"]
            print(f"  best of ours  {forward:7.1f} x   {both:7.1f} x faster")


def measure(name: str, inputs: dict[str, torch.Tensor], repeats: int) -> dict[str, Any]:
    rules = {"chunked": ours("chunked")}
    if native_library.library() is not None:
        rules["native"] = ours("native")
    if importlib.util.find_spec("transformers") is not None:
        rules["transformers"] = theirs()
    else:
        print("transformers is not installed; make peers installs it")
    reference = rules["chunked"](inputs)
    for other, rule in rules.items():
        for one, wanted in zip(rule(inputs), reference, strict=True):
            if (one - wanted).abs().max() > AGREE * wanted.abs().max().clamp_min(1):
                raise SystemExit(f"{name}: {other} computes something else")

    leaves = {key: tensor.clone().requires_grad_() for key, tensor in inputs.items()}

    def forward(rule):
        with torch.no_grad():
            return rule(inputs)

    def forward_backward(rule):
        output, state = rule(leaves)
        return torch.autograd.grad(output.sum() + state.sum(), list(leaves.values()))

    functions = {}
    for key, rule in rules.items():
        functions[key, "forward"] = lambda rule=rule: forward(rule)
        functions[key, "forward_backward"] = lambda rule=rule: forward_backward(rule)
    times = interleaved(functions, warmup=2, repeats=repeats)
    found: dict[str, Any] = {"name": name, "shape": list(inputs["key"].shape), "milliseconds": {}}
    for (key, what), timing in times.items():
        found["milliseconds"].setdefault(key, {})[what] = 1000 * timing.median
    if "transformers" in rules:
        for what in ("forward", "forward_backward"):
            best = min(times[key, what].median for key in rules if key != "transformers")
            found[f"ratio_{what}"] = times["transformers", what].median / best
    return found


def make_inputs(
    batch: int, seq: int, heads: int, d_head: int, *, strong: bool
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "query": F.normalize(normal(batch, seq, heads, d_head), dim=-1) * d_head**-0.5,
        "key": F.normalize(normal(batch, seq, heads, d_head), dim=-1),
        "value": normal(batch, seq, heads, d_head),
        "log_decay": -(torch.rand(batch, seq, heads, generator=generator) ** 4) * 8
        if strong
        else -normal(batch, seq, heads).square() / 8,
        "write_strength": normal(batch, seq, heads).sigmoid(),
        "initial_state": normal(batch, heads, d_head, d_head),
    }


def ours(implementation):
    return lambda inputs: gated_delta_rule(**inputs, implementation=implementation)


def theirs():
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    rule = inspect.unwrap(torch_chunk_gated_delta_rule)

    def run(inputs):
        width = inputs["query"].shape[-1]
        return rule(
            inputs["query"] * width**0.5,  # it scales by itself
            inputs["key"],
            inputs["value"],
            g=inputs["log_decay"],
            beta=inputs["write_strength"],
            initial_state=inputs["initial_state"],
            output_final_state=True,
            use_qk_l2norm_in_kernel=False,
        )

    return run


if __name__ == "__main__":
    main()
