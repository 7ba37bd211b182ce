"""A training step of models of `transformers`, with our operator installed and without it.

    python benchmarks/transformers_kernels.py [--rounds N] [--models NAME ...] [--json]

Two layers of width 512 whose mixers are all of one kind, with the proportions of the published
models, on one text of 1,024 tokens in float32: forward, loss and backward. First the loss and all
gradients with the operator are compared with a step of `transformers` alone in float64. (In float32
its gradients of Qwen3-Next's decays are off by 1e-3.) `transformers` runs its torch functions, also
where flash-linear-attention is installed. The exit code is 1 when the operator makes a step less
than twice as fast.
"""

import argparse
import copy
import importlib
import inspect
import json
import sys
import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mixerloop import machine
from mixerloop.benchmarking.float64 import InFloat64
from mixerloop.benchmarking.measure import Quartiles, check_close, header, interleaved
from mixerloop.interop import transformers_kernels
from mixerloop.text_tables import table_of, text_of

WIDTH, LENGTH = 512, 1024
VOCABULARY = 1024  # small, so that the layers are timed rather than the head
AT_LEAST = 2.0
AGREE = 1e-4  # float32, relative to the largest value of a gradient
SHARED = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-Next": (
        "Qwen3Next",
        {
            "intermediate_size": 1408,
            "mlp_only_layers": [0, 1],
            "layer_types": 2 * ["linear_attention"],
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
        },
    ),
    "Kimi-Linear": (
        "KimiLinear",
        {
            "intermediate_size": 2048,
            "mlp_layer_types": 2 * ["dense"],
            "layer_types": 2 * ["linear_attention"],
            "linear_num_heads": 7,
            "linear_head_dim": 128,
            "pad_token_id": None,
        },
    ),
    "Mamba2": ("Mamba2", {"num_heads": 16, "head_dim": 64, "state_size": 128, "n_groups": 1}),
}


def use_torch_functions() -> None:
    """Put the torch functions of `transformers` in the place of other packages' kernels."""
    for name, models in transformers_kernels.MODELS.items():
        for model in models:
            module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
            setattr(module, name, inspect.unwrap(getattr(module, name)))


def make_model(name: str) -> nn.Module:
    import transformers

    prefix, options = MODELS[name]
    config = getattr(transformers, f"{prefix}Config")(**SHARED, **options)
    torch.manual_seed(0)
    return getattr(transformers, f"{prefix}ForCausalLM")(config).train()


def training_step(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    """The loss and the gradient of every parameter."""
    model.zero_grad()
    loss = model(tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **gradients}


def compare(name: str, *, rounds: int) -> dict[str, Any]:
    model = make_model(name)
    tokens = torch.randint(VOCABULARY, (1, LENGTH))
    step = partial(training_step, model, tokens)

    def installed() -> dict[str, Tensor]:
        with transformers_kernels.install():  # a few milliseconds, which count as ours
            return step()

    with InFloat64():
        wanted = training_step(copy.deepcopy(model).double(), tokens)
    got = installed()
    assert got.keys() == wanted.keys()
    for what, right in wanted.items():
        largest = right.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
        ours = got[what].double()
        check_close(f"{name}: {what}", ours / largest, right / largest, tolerance=AGREE)
    times = interleaved({"without": step, "with": installed}, warmup=1, repeats=rounds)
    ratio = times["without"].over(times["with"])
    return {
        "model": name,
        "milliseconds": {which: timing.milliseconds for which, timing in times.items()},
        "ratio": ratio.median,
        "ratio_quartiles": ratio[1:],
        "passed": ratio.median >= AT_LEAST,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    machine.keep_off_hidden_amx()
    warnings.simplefilter("ignore")  # flash-linear-attention warns where there is no GPU
    use_torch_functions()
    neighbours = machine.Neighbours()
    cases = [compare(name, rounds=options.rounds) for name in options.models]
    if options.json:
        facts = {**machine.facts(), "busy_cores_of_others": neighbours.busy_cores()}
        print(json.dumps({"machine": facts, "rounds": options.rounds, "cases": cases}, indent=2))
    else:
        print(f"# {header()}")
        print(f"a training step of two layers of width {WIDTH} at {LENGTH:,} tokens, float32, ms")
        table = table_of("model", "transformers", "with our operator", "ratio")
        for case in cases:
            spreads = [spread(taken, digits=0) for taken in case["milliseconds"].values()]
            ratio = Quartiles(case["ratio"], *case["ratio_quartiles"])
            table.add_row(case["model"], *spreads, f"{spread(ratio, digits=2)} x")
        print(text_of(table))
    sys.exit(not all(case["passed"] for case in cases))


def spread(taken: Quartiles, *, digits: int) -> str:
    median, lower, upper = (f"{value:,.{digits}f}" for value in taken)
    return f"{median} [{lower}, {upper}]"


if __name__ == "__main__":
    main()
