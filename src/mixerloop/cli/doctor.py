"""`mixerloop doctor`: what this machine and this installation have, and what is missing."""

import importlib.util
import shutil
from dataclasses import dataclass

from mixerloop import machine
from mixerloop.files import json_text

HELP = """Look at the machine and the installation, and say what is missing and what it costs.

examples:
  mixerloop doctor
  mixerloop doctor --json
"""
EXTRAS = {
    "fla": "the gated delta rule of flash-linear-attention, on a GPU or to compare with",
    "transformers": "the gated delta rule of transformers, to compare with",
    "wandb": "train.wandb",
    "ray": "mixerloop study --engine ray",
}


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """The options of `mixerloop doctor`."""

    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Look and say."""
        import torch

        from mixerloop.ops import native_library
        from mixerloop.ops.gated_delta_rule import choose_form
        from mixerloop.ops.precision import bfloat16_speedup, choose_compute_dtype

        device = "cuda" if torch.cuda.is_available() else "cpu"
        compiled = native_library.library() is not None
        found = {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "cuda": torch.cuda.is_available(),
            "machine": machine.facts(),
            "form": choose_form("auto"),
            "compute_dtype": choose_compute_dtype("auto", device),
            "bfloat16_speedup": bfloat16_speedup(device),
            "openmp": native_library.openmp_runtimes(),
            "native_kernel": compiled,
            "instruction_set": native_library.instruction_set() if compiled else None,
            "torch_threads": compiled and native_library.torch_threads() is not None,
            "compiler": shutil.which("c++"),
            "extras": {name: importlib.util.find_spec(name) is not None for name in EXTRAS},
        }
        if self.json:
            print(json_text(found), end="")
        else:
            _show(found)


def _show(found: dict) -> None:
    facts = found["machine"]
    print(f"{facts['processor']}, {facts['cores']} cores; torch {found['torch']}, ", end="")
    print(f"{found['threads']} threads, {'CUDA' if found['cuda'] else 'no CUDA'}")
    if facts["isa_limit"]:
        print(f"oneDNN is limited to {facts['isa_limit']}: AMX is announced here and does not work")
    _show_waiting(facts["waiting"], found["openmp"])
    print(
        f"compute_dtype auto is {found['compute_dtype']}: a product in bfloat16 is "
        f"{found['bfloat16_speedup']:.1f} times as fast as in float32"
    )
    if found["native_kernel"]:
        print(f"native kernel: compiled, runs with {found['instruction_set']}")
        if not found["torch_threads"]:
            print("  torch's OpenMP threads were not found, so the kernel runs on one thread")
    else:
        reason = "there is no C++ compiler" if found["compiler"] is None else "it was not built"
        print(
            f"native kernel: missing, {reason}; the torch form of the rule is used instead, which"
        )
        print("  takes several times as long. Install a C++ compiler and mixerloop again.")
    for name, there in found["extras"].items():
        print(f"{name}: {'there' if there else f'not installed; needed for {EXTRAS[name]}'}")


def _show_waiting(waiting: dict[str, str], runtimes: list[str]) -> None:
    """How threads wait, which decides the speed beside other programs."""
    said = ", ".join(f"{name}={value}" for name, value in waiting.items()) or "as the runtime likes"
    print(f"waiting threads: {said} ({', '.join(runtimes) or 'no OpenMP runtime seen'})")
    if not any(name.startswith(("libgomp", "libomp", "libiomp")) for name in runtimes):
        print("  this OpenMP runtime is not known, so training may be slow beside other programs")
