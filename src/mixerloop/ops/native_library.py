"""The compiled kernels: their file, their arguments and the threads they run on."""

import ctypes
import importlib.util
import os
import struct
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch.autograd import forward_ad

from mixerloop.config import Form
from mixerloop.ops.derivatives import transforms_are_active

MODULE = "mixerloop.ops._native"
INSTRUCTION_SETS = ("portable", "avx2", "avx512")
SET_VARIABLE = "MIXERLOOP_INSTRUCTION_SET"
"""Names the instruction set to use, for tests and measurements; the best there is otherwise."""

OPERATORS = (  # in the order of native/call.h
    *("rule", "rule_backward", "mixing", "mixing_backward"),
    *("swiglu", "swiglu_backward", "rms_norm", "rms_norm_backward", "cross_entropy"),
    "row_product",
)
TYPES = (torch.float32, torch.float64, torch.bfloat16)
"""Types of token tensors; weights, states and sums are float32, or float64 with float64."""
PLAIN = (torch.Tensor, torch.nn.Parameter)
BLOCK_ROWS = 8  # rows a thread takes at a time, as in native/rows.h
GROUP_TOKENS = 64  # tokens between two saved states, CHUNK * GROUP in native/rule.h


class CallLayout:
    """The fields of a struct of native/call.h: sizes, other numbers, addresses of tensors."""

    def __init__(
        self, sizes: tuple[str, ...], numbers: tuple[str, ...], pointers: tuple[str, ...]
    ) -> None:
        self.pointers = pointers
        self._fields = struct.Struct("q" * len(sizes) + "d" * len(numbers) + "Q" * len(pointers))
        self.num_bytes = self._fields.size
        self.pack = self._fields.pack


CALLS = {
    "rule": CallLayout(
        ("batch", "seq", "heads", "d_key_size", "d_value_size", "decays_by_channel"),
        (),
        (
            *("query", "key", "value", "log_decay", "erase_key", "write_strength"),
            *("initial_state", "output", "final_state", "states", "d_output", "d_final_state"),
            *("d_query", "d_key", "d_value", "d_log_decay", "d_erase_key", "d_write_strength"),
            "d_initial_state",
        ),
    ),
    "mixing": CallLayout(
        ("batch", "seq", "heads", "d_head", "width"),
        ("norm_eps", "unit_eps", "query_scale"),
        (
            *("qkv", "gate", "decay", "write"),
            *("conv_weight", "history", "A_log", "dt_bias", "norm_weight", "initial_state"),
            *("output", "final_state", "states", "d_output", "d_final_state"),
            *("d_qkv", "d_gate", "d_decay", "d_write"),
            *("d_conv_weight", "d_history", "d_A_log", "d_dt_bias", "d_norm_weight"),
            "d_initial_state",
        ),
    ),
    "swiglu": CallLayout(("rows", "width"), (), ("gate_up", "output", "d_output", "d_gate_up")),
    "rms_norm": CallLayout(
        ("rows", "width"), ("eps",), ("x", "weight", "y", "d_y", "d_x", "d_weight")
    ),
    "cross_entropy": CallLayout(
        ("rows", "vocab", "with_gradient"), (), ("logits", "labels", "losses")
    ),
    "row_product": CallLayout(("rows", "d_input", "d_output"), (), ("x", "weight", "bias", "y")),
}


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None where the package was installed without a compiler."""
    spec = importlib.util.find_spec(MODULE)
    if spec is None or spec.origin is None:
        return None
    loaded = ctypes.CDLL(spec.origin)
    if not _is_of_this_source(loaded):
        raise ValueError(f"{spec.origin} was built from another source; install mixerloop again")
    loaded.mixerloop_run.argtypes = [
        *(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
        ctypes.c_void_p,
    ]
    return loaded


def _is_of_this_source(loaded: ctypes.CDLL) -> bool:
    """Whether both sides mean the same by a call: a mismatch would be read as garbage."""
    wanted = (
        *(len(OPERATORS), len(TYPES), GROUP_TOKENS, BLOCK_ROWS),
        *(layout.num_bytes for layout in CALLS.values()),
    )
    if not hasattr(loaded, "mixerloop_facts"):
        return False
    facts = (ctypes.c_int64 * len(wanted))()
    return loaded.mixerloop_facts(facts, len(wanted)) == 0 and tuple(facts) == wanted


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
    """The address of the function that runs work on torch's own OpenMP threads, or None.

    A second OpenMP runtime would bring threads of its own, and the two would fight for the cores.
    """
    for name in _openmp_libraries():
        runtime = ctypes.CDLL(name)
        if hasattr(runtime, "GOMP_parallel"):
            return ctypes.cast(runtime.GOMP_parallel, ctypes.c_void_p).value
    return None


def _openmp_libraries() -> list[str]:
    """OpenMP runtimes this process has loaded already; torch brings its own."""
    maps = Path("/proc/self/maps")
    if sys.platform != "linux" or not maps.exists():
        return []
    paths = {line.split()[-1] for line in maps.read_text().splitlines() if "/" in line}
    names = ("libgomp", "libiomp5", "libomp")
    return sorted(
        (path for path in paths if Path(path).name.startswith(names)),
        key=lambda path: "torch" not in path,
    )


def openmp_runtimes() -> list[str]:
    """Names of the OpenMP runtimes in this process, torch's first."""
    return [Path(path).name for path in _openmp_libraries()]


def goes_past_dispatcher(*tensors: torch.Tensor) -> bool:
    """Whether these are plain CPU tensors outside autograd, tracing and dispatch modes.

    Then the kernel is called without torch's dispatcher. For a single token the dispatcher costs as
    much as the kernel, and its first call of a custom operator loads torch's compiler: more than a
    second.
    """
    if (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._are_functorch_transforms_active()  # vmap's tensors look plain
        or forward_ad._current_level >= 0  # so do tensors with tangents
        or torch._C._len_torch_dispatch_stack()
    ):
        return False
    records = torch.is_grad_enabled()
    for tensor in tensors:
        if type(tensor) not in PLAIN or not tensor.is_cpu or tensor.layout is not torch.strided:
            return False
        if tensor.is_neg() or tensor._is_zerotensor():
            return False
        if records and tensor.requires_grad:
            return False
    return True


def keeps_states(*tensors: torch.Tensor) -> bool:
    """Whether a backward may follow; `vmap` hides whether its tensors require a gradient."""
    return torch.is_grad_enabled() and (
        transforms_are_active() or any(tensor.requires_grad for tensor in tensors)
    )


def row_form(form: Form) -> Form:
    """The form of an operator on rows, such as a norm: native where that is chosen, else torch."""
    return "native" if form == "native" else "torch"


def run(
    operator: str,
    dtype: torch.dtype,
    *sizes: float,
    reads: Mapping[str, torch.Tensor],
    writes: Mapping[str, torch.Tensor],
    backward: bool = False,
) -> None:
    """Run an operator on tokens of type `dtype`; the tensors in `writes` are contiguous."""
    tensors = {name: tensor.contiguous() for name, tensor in reads.items()} | dict(writes)
    for name, tensor in tensors.items():
        if type(tensor) not in PLAIN or tensor.device.type != "cpu":
            raise ValueError(
                f"the native kernel reads plain tensors in a CPU's memory; {name} is a "
                f"{type(tensor).__name__} on {tensor.device.type}"
            )
        assert tensor.is_contiguous()
    layout = CALLS[operator]
    addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    assert addresses.keys() <= set(layout.pointers)
    start(
        OPERATORS.index(f"{operator}_backward" if backward else operator),
        TYPES.index(dtype),
        layout.pack(*sizes, *(addresses.get(name, 0) for name in layout.pointers)),
        torch.get_num_threads(),
    )


def start(which: int, dtype: int, call: bytes, num_threads: int) -> None:
    """Run an operator whose call is packed; all it points to is in memory and of the right type."""
    loaded = library()
    assert loaded is not None
    failed = loaded.mixerloop_run(
        which, dtype, call, _instruction_set_number(), num_threads, torch_threads()
    )
    if failed:
        raise MemoryError("no memory for the native kernel's scratch")


@cache
def _instruction_set_number() -> int:
    """The environment is read once: reading it takes longer than a token does."""
    return INSTRUCTION_SETS.index(instruction_set())


def reread_instruction_set() -> None:
    """Heed a change of the environment's instruction set, for tests and measurements."""
    _instruction_set_number.cache_clear()
