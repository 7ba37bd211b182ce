"""The compiled kernels: where they lie, what they are called with, whose threads they use."""

import ctypes
import importlib.util
import os
import sys
from functools import cache
from pathlib import Path

import torch

MODULE = "mixerloop.ops._native"
INSTRUCTION_SETS = ("portable", "avx2", "avx512")
SET_VARIABLE = "MIXERLOOP_INSTRUCTION_SET"
"""Names the instruction set to use, for tests and measurements; the best there is otherwise."""

POINTERS = (
    *("query", "key", "value", "log_decay", "write_strength", "initial_state"),
    *("output", "final_state", "states", "d_output", "d_final_state"),
    *("d_query", "d_key", "d_value", "d_log_decay", "d_write_strength", "d_initial_state"),
)


class RuleCall(ctypes.Structure):
    """The struct of the same name in native/call.h."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in ("batch", "seq", "heads", "d_key_size", "d_value_size")
        ),
        *((name, ctypes.c_void_p) for name in POINTERS),
    )


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None where the package was installed without a compiler."""
    spec = importlib.util.find_spec(MODULE)
    if spec is None or spec.origin is None:
        return None
    loaded = ctypes.CDLL(spec.origin)
    loaded.mixerloop_rule.argtypes = [
        *(ctypes.POINTER(RuleCall), ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_void_p,
    ]
    return loaded


def instruction_set() -> str:
    """The instruction set the kernels run with on this machine."""
    loaded = library()
    assert loaded is not None
    best = loaded.mixerloop_best_set()
    wanted = os.environ.get(SET_VARIABLE)
    if wanted is None:
        return INSTRUCTION_SETS[best]
    if wanted not in INSTRUCTION_SETS[: best + 1]:
        known = ", ".join(INSTRUCTION_SETS[: best + 1])
        raise ValueError(f"{SET_VARIABLE}: this machine has no '{wanted}'; it has {known}")
    return wanted


@cache
def torch_threads() -> int | None:
    """The address of the function that runs work on torch's own OpenMP threads, if there is one.

    A second OpenMP runtime would bring threads of its own, and the two would fight for the cores.
    """
    for name in _openmp_libraries():
        runtime = ctypes.CDLL(name)
        if hasattr(runtime, "GOMP_parallel"):
            return ctypes.cast(runtime.GOMP_parallel, ctypes.c_void_p).value
    return None


def _openmp_libraries() -> list[str]:
    """OpenMP runtimes this process has loaded already; torch comes with one."""
    maps = Path("/proc/self/maps")
    if sys.platform != "linux" or not maps.exists():
        return []
    paths = {line.split()[-1] for line in maps.read_text().splitlines() if "/" in line}
    names = ("libgomp", "libiomp5", "libomp")
    return sorted(
        (path for path in paths if Path(path).name.startswith(names)),
        key=lambda path: "torch" not in path,
    )


def call_rule(
    *, backward: bool, sizes: tuple[int, int, int, int, int], **tensors: torch.Tensor | None
) -> None:
    """Run the kernel on contiguous tensors of one type; what it writes is among them."""
    loaded = library()
    assert loaded is not None
    pointers = {
        name: None if tensor is None else tensor.data_ptr() for name, tensor in tensors.items()
    }
    dtype = next(tensor.dtype for tensor in tensors.values() if tensor is not None)
    call = RuleCall(*sizes, *(pointers.get(name) for name in POINTERS))
    failed = loaded.mixerloop_rule(
        ctypes.byref(call),
        int(dtype == torch.float64),
        int(backward),
        INSTRUCTION_SETS.index(instruction_set()),
        torch.get_num_threads(),
        torch_threads(),
    )
    if failed:
        raise MemoryError("no memory for the native kernel's scratch")
