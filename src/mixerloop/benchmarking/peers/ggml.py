"""ggml, of llama.cpp: `ggml_gated_delta_net`, token by token, called in its shared libraries.

It scales the query, and keeps the state as d_value x d_key. Its threads wait for work by spinning,
so they are paused after what is timed.
"""

import ctypes
import functools
import weakref
from ctypes import POINTER, byref, c_bool, c_float, c_int, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

import torch
from torch import Tensor

from mixerloop.benchmarking.implementation import Implementation, Inputs, Prepared
from mixerloop.benchmarking.peers.libraries import archive, libraries

BASE = "libggml-base.so"
FLOAT32 = 0  # ggml_type
MOST_TENSORS = 16
MOST_CORES = 512


class _ContextParams(ctypes.Structure):
    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


class _PoolParams(ctypes.Structure):
    _fields_ = (
        ("cpumask", c_bool * MOST_CORES),
        ("n_threads", c_int),
        ("prio", c_int),
        ("poll", c_uint32),
        ("strict_cpu", c_bool),
        ("paused", c_bool),
    )


SIGNATURES: dict[str, tuple[Any, ...]] = {  # the result, then the arguments
    "ggml_init": (c_void_p, _ContextParams),
    "ggml_free": (None, c_void_p),
    "ggml_tensor_overhead": (c_size_t,),
    "ggml_graph_overhead": (c_size_t,),
    "ggml_new_tensor_4d": (c_void_p, c_void_p, c_int, *4 * (c_int64,)),
    "ggml_gated_delta_net": (c_void_p, *7 * (c_void_p,), c_int64),
    "ggml_new_graph": (c_void_p, c_void_p),
    "ggml_build_forward_expand": (None, c_void_p, c_void_p),
    "ggml_get_data": (c_void_p, c_void_p),
    "ggml_nelements": (c_int64, c_void_p),
    "ggml_backend_alloc_ctx_tensors": (c_void_p, c_void_p, c_void_p),
    "ggml_backend_buffer_free": (None, c_void_p),
    "ggml_backend_graph_compute": (c_int, c_void_p, c_void_p),
    "ggml_threadpool_params_init": (None, POINTER(_PoolParams), c_int),
    "ggml_threadpool_new": (c_void_p, POINTER(_PoolParams)),
    "ggml_threadpool_pause": (None, c_void_p),
    "ggml_backend_cpu_init": (c_void_p,),
    "ggml_backend_cpu_set_n_threads": (None, c_void_p, c_int),
    "ggml_backend_cpu_set_threadpool": (None, c_void_p, c_void_p),
}


class _Library:
    """The functions for this processor, and a backend with as many threads as torch."""

    def __init__(self) -> None:
        paths = libraries("ggml")
        base = ctypes.CDLL(str(paths.pop(BASE)), mode=ctypes.RTLD_GLOBAL)
        processors = [ctypes.CDLL(str(path)) for path in paths.values()]
        best = max(processors, key=lambda library: library.ggml_backend_score())
        for name, (result, *arguments) in SIGNATURES.items():
            function = getattr(base if hasattr(base, name) else best, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("ggml_"), function)
        params = _PoolParams()
        self.threadpool_params_init(byref(params), torch.get_num_threads())
        self.pool = self.threadpool_new(byref(params))
        self.backend = self.backend_cpu_init()
        self.backend_cpu_set_n_threads(self.backend, torch.get_num_threads())
        self.backend_cpu_set_threadpool(self.backend, self.pool)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"ggml has no function {name}")


@functools.cache
def _library() -> _Library:
    return _Library()


class _Call:
    """A graph of one node, with the inputs in its memory."""

    def __init__(self, inputs: Inputs) -> None:
        self._ggml = ggml = _library()
        batch, seq, heads, d_key = inputs["key"].shape
        self._shape = inputs["value"].shape
        size = MOST_TENSORS * ggml.tensor_overhead() + ggml.graph_overhead()
        context = ggml.init(_ContextParams(size, None, True))
        own = {
            "query": inputs["query"] * d_key**0.5,
            "key": inputs["key"],
            "value": inputs["value"],
            "log_decay": inputs["log_decay"].reshape(batch, seq, heads, -1),
            "write_strength": inputs["write_strength"].unsqueeze(-1),
            "initial_state": inputs["initial_state"].mT,
        }
        handles = {
            name: ggml.new_tensor_4d(context, FLOAT32, *reversed(tensor.shape))
            for name, tensor in own.items()
        }
        self._result = ggml.gated_delta_net(context, *handles.values(), 1)
        self._graph = ggml.new_graph(context)
        ggml.build_forward_expand(self._graph, self._result)
        memory = ggml.backend_alloc_ctx_tensors(context, ggml.backend)
        for name, tensor in own.items():
            given = tensor.contiguous()
            ctypes.memmove(ggml.get_data(handles[name]), given.data_ptr(), given.nbytes)
        weakref.finalize(self, ggml.free, context)
        weakref.finalize(self, ggml.backend_buffer_free, memory)

    def run(self) -> None:
        status = self._ggml.backend_graph_compute(self._ggml.backend, self._graph)
        assert status == 0, f"ggml ended with status {status}"

    def outputs(self) -> tuple[Tensor, Tensor]:
        """The output and, behind it in the same tensor, the final state."""
        self.run()
        size = self._ggml.nelements(self._result)
        memory = (c_float * size).from_address(self._ggml.get_data(self._result))
        flat = torch.frombuffer(memory, dtype=torch.float32).clone()
        batch, seq, heads, d_value = self._shape
        output, state = flat.tensor_split([batch * seq * heads * d_value])
        return output.reshape(self._shape), state.reshape(batch, heads, d_value, -1).mT

    def rest(self) -> None:
        self._ggml.threadpool_pause(self._ggml.pool)


def _prepare(inputs: Inputs, _cotangents: tuple[Tensor, Tensor]) -> Prepared:
    call = _Call(inputs)
    return Prepared(forward=call.run, outputs=call.outputs, rest=call.rest)


def _limit(inputs: Inputs) -> str | None:
    same = inputs["key"].shape[-1] == inputs["value"].shape[-1]
    return None if same else "takes keys and values of one width"


IMPLEMENTATION = Implementation(
    name="ggml",
    is_installed=lambda: BASE in libraries("ggml"),
    prepare=_prepare,
    version=functools.partial(archive, "ggml"),
    decays=("head", "channel"),
    is_bound=True,  # a graph of tensors that stay where they are
    limit=_limit,
)
