"""`inspect_installation`: facts about this machine and this installation."""

import importlib.util
import platform
import shutil
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import torch

from mixerloop import machine
from mixerloop.config import ComputeDtype, Form
from mixerloop.messages import shortened
from mixerloop.ops import native_library
from mixerloop.ops.gated_delta_rule import choose_form
from mixerloop.ops.precision import bfloat16_speedup, choose_compute_dtype


@dataclass(frozen=True)
class Extra:
    """An extra of the package: `pip install 'mixerloop[NAME]'`."""

    gives: str
    packages: tuple[str, ...]
    """The packages to import, all of which must be installed."""


EXTRAS = {
    "fla": Extra("the rule of flash-linear-attention, for GPUs", ("fla", "triton")),
    "hf": Extra(
        "tokenizer.json, GGUF files, models in transformers",
        ("accelerate", "gguf", "tokenizers", "transformers"),
    ),
    "lm-eval": Extra("the tasks of lm-evaluation-harness", ("lm_eval",)),
    "peers": Extra(
        "other implementations, for mixerloop bench",
        ("fla", "mlx", "onnx", "onnxruntime", "transformers", "triton"),
    ),
    "ray": Extra("mixerloop study --engine ray", ("ray",)),
    "wandb": Extra("train.wandb, metrics in Weights & Biases", ("wandb",)),
}
"""The extras that give a user something, by name."""
KNOWN_RUNTIMES = ("libgomp", "libomp", "libiomp")
"""OpenMP runtimes with a setting that makes waiting threads sleep."""
SCREEN_COLUMNS = 80
INDENT = " " * 15  # the width of the first column


@dataclass(frozen=True, kw_only=True)
class Installation:
    """Facts about the machine and its packages that decide which code runs, and how fast."""

    mixerloop: str
    """The version of mixerloop."""
    python: str
    """The version of Python."""
    torch: str
    """The version of torch."""
    threads: int
    cuda: bool
    machine: dict[str, Any]
    form: Form
    """The form of the gated delta rule that `auto` chooses."""
    compute_dtype: ComputeDtype
    """The compute type that `auto` chooses."""
    bfloat16_speedup: float
    """The speed of a matrix product in bfloat16 over its speed in float32."""
    openmp: list[str]
    """The OpenMP runtimes that this process has loaded."""
    native_kernel: bool
    instruction_set: str | None
    """The instruction set of the native kernel; None without the kernel."""
    torch_threads: bool
    """Whether the native kernel runs on torch's threads."""
    compiler: str | None
    extras: dict[str, bool]
    """The extras by name, and whether all packages of each are installed."""

    def to_json(self) -> dict[str, Any]:
        """The JSON that `mixerloop doctor --json` prints."""
        return asdict(self)


def inspect_installation() -> Installation:
    """Inspect the machine, torch, the native kernel and the optional packages."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    compiled = native_library.library() is not None
    return Installation(
        mixerloop=metadata.version("mixerloop"),
        python=platform.python_version(),
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        cuda=torch.cuda.is_available(),
        machine=machine.facts(),
        form=choose_form("auto"),
        compute_dtype=choose_compute_dtype("auto", device),
        bfloat16_speedup=bfloat16_speedup(device),
        openmp=native_library.openmp_runtimes(),
        native_kernel=compiled,
        instruction_set=native_library.instruction_set() if compiled else None,
        torch_threads=compiled and native_library.torch_threads() is not None,
        compiler=shutil.which("c++"),
        extras={name: all(map(_is_installed, extra.packages)) for name, extra in EXTRAS.items()},
    )


def installation_text(here: Installation) -> str:
    """A screen of 24 lines and 80 columns: versions, speed, and the extras that are missing."""
    facts = here.machine
    lines = [
        f"mixerloop {here.mixerloop}, Python {here.python}, torch {here.torch}",
        f"processor      {facts['processor']}, {facts['cores']} cores, {here.threads} threads",
        f"GPU            {'yes, with CUDA' if here.cuda else 'none that torch can use'}",
        f"compute type   {here.compute_dtype}: bfloat16 products run {here.bfloat16_speedup:.1f} "
        "times as fast as float32",
        *_kernel_lines(here),
        *_waiting_lines(facts["waiting"], here.openmp),
    ]
    if facts["isa_limit"]:
        lines += [
            f"oneDNN         limited to {facts['isa_limit']}",
            f"{INDENT}AMX is announced here and does not work",
        ]
    lines += ["", "extras"]
    for name, there in here.extras.items():
        lines.append(f"  {name:<8} {'installed' if there else 'missing':<10} {EXTRAS[name].gives}")
    missing = [name for name, there in here.extras.items() if not there]
    if missing:
        lines += ["", f"to add an extra: pip install 'mixerloop[{missing[0]}]'"]
    return "\n".join(shortened(line, SCREEN_COLUMNS) for line in lines)


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _kernel_lines(here: Installation) -> list[str]:
    if not here.native_kernel:
        reason = "there is no C++ compiler" if here.compiler is None else "it was not built"
        return [
            f"native kernel  missing, {reason}",
            f"{INDENT}the torch form runs instead and takes several times as long",
            f"{INDENT}install a C++ compiler, and mixerloop again",
        ]
    lines = [f"native kernel  compiled, runs with {here.instruction_set}"]
    if not here.torch_threads:
        lines.append(f"{INDENT}torch's OpenMP threads were not found: one thread runs it")
    return lines


def _waiting_lines(waiting: dict[str, str], runtimes: list[str]) -> list[str]:
    """Lines about how threads wait, which decides the speed while other programs run."""
    said = ", ".join(f"{name}={value}" for name, value in waiting.items()) or "as the runtime likes"
    lines = [
        f"OpenMP         {', '.join(runtimes) or 'no runtime seen'}",
        f"{INDENT}waiting threads: {said}",
    ]
    if not any(name.startswith(KNOWN_RUNTIMES) for name in runtimes):
        lines.append(f"{INDENT}not a known runtime: training may be slow beside other programs")
    return lines
