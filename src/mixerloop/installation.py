"""`inspect_installation`: facts about this machine and this installation."""

import importlib.util
import shutil
from dataclasses import asdict, dataclass
from typing import Any

import torch

from mixerloop import machine
from mixerloop.config import ComputeDtype, Form
from mixerloop.ops import native_library
from mixerloop.ops.gated_delta_rule import choose_form
from mixerloop.ops.precision import bfloat16_speedup, choose_compute_dtype

EXTRAS = {
    "fla": "the gated delta rule of flash-linear-attention, on a GPU or to compare with",
    "transformers": "the gated delta rule of transformers, to compare with",
    "wandb": "train.wandb",
    "ray": "mixerloop study --engine ray",
}
"""Optional packages, and the features that need them."""
KNOWN_RUNTIMES = ("libgomp", "libomp", "libiomp")
"""OpenMP runtimes with a setting that makes waiting threads sleep."""


@dataclass(frozen=True, kw_only=True)
class Installation:
    """Facts about the machine and its packages that decide which code runs, and how fast."""

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
    """Optional packages, and whether each is installed."""

    def to_json(self) -> dict[str, Any]:
        """The JSON that `mixerloop doctor --json` prints."""
        return asdict(self)


def inspect_installation() -> Installation:
    """Inspect the machine, torch, the native kernel and the optional packages."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    compiled = native_library.library() is not None
    return Installation(
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
        extras={name: importlib.util.find_spec(name) is not None for name in EXTRAS},
    )


def installation_text(here: Installation) -> str:
    """Lines about the machine and the packages, with the cost of each missing package."""
    facts = here.machine
    lines = [
        f"{facts['processor']}, {facts['cores']} cores; torch {here.torch}, "
        f"{here.threads} threads, {'CUDA' if here.cuda else 'no CUDA'}"
    ]
    if facts["isa_limit"]:
        lines.append(
            f"oneDNN is limited to {facts['isa_limit']}: AMX is announced here and does not work"
        )
    lines += _waiting_lines(facts["waiting"], here.openmp)
    lines.append(
        f"compute_dtype auto is {here.compute_dtype}: a product in bfloat16 is "
        f"{here.bfloat16_speedup:.1f} times as fast as in float32"
    )
    lines += _kernel_lines(here)
    for name, there in here.extras.items():
        lines.append(f"{name}: {'there' if there else f'not installed; needed for {EXTRAS[name]}'}")
    return "\n".join(lines)


def _kernel_lines(here: Installation) -> list[str]:
    if not here.native_kernel:
        reason = "there is no C++ compiler" if here.compiler is None else "it was not built"
        return [
            f"native kernel: missing, {reason}; the torch form of the rule is used instead, which",
            "  takes several times as long. Install a C++ compiler and mixerloop again.",
        ]
    lines = [f"native kernel: compiled, runs with {here.instruction_set}"]
    if not here.torch_threads:
        lines.append("  torch's OpenMP threads were not found, so the kernel runs on one thread")
    return lines


def _waiting_lines(waiting: dict[str, str], runtimes: list[str]) -> list[str]:
    """Lines about how threads wait, which decides the speed while other programs run."""
    said = ", ".join(f"{name}={value}" for name, value in waiting.items()) or "as the runtime likes"
    lines = [f"waiting threads: {said} ({', '.join(runtimes) or 'no OpenMP runtime seen'})"]
    if not any(name.startswith(KNOWN_RUNTIMES) for name in runtimes):
        lines.append(
            "  this OpenMP runtime is not known, so training may be slow beside other programs"
        )
    return lines
