"""onnxruntime: its operator `LinearAttention`, token by token, as a graph of one node.

`session.run` takes and returns numpy arrays. With IO binding the session reads and writes memory
that was bound before, which saves most of the time of a short call.
"""

import os
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixerloop.benchmarking.implementation import Implementation, Inputs, Prepared

OUTPUTS = ("output", "present_state")
IR_VERSION = 10  # onnx writes a newer one by default than onnxruntime reads


def _prepare(inputs: Inputs, _cotangents: tuple[Tensor, Tensor], *, with_binding: bool) -> Prepared:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # it writes to the home folder on import
    import onnxruntime as ort

    batch, seq, heads, d_key = inputs["key"].shape
    d_value = inputs["value"].shape[-1]
    named = {
        "query": inputs["query"].reshape(batch, seq, -1),
        "key": inputs["key"].reshape(batch, seq, -1),
        "value": inputs["value"].reshape(batch, seq, -1),
        "past_state": inputs["initial_state"],
        "decay": inputs["log_decay"].reshape(batch, seq, -1),
        "beta": inputs["write_strength"],
    }
    feeds = {name: tensor.contiguous().numpy() for name, tensor in named.items()}
    shapes = {
        "output": (batch, seq, heads * d_value),
        "present_state": (batch, heads, d_key, d_value),
    }
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    session = ort.InferenceSession(
        _graph(feeds, shapes, heads=heads), options, providers=["CPUExecutionProvider"]
    )

    def tensors(output: Any, state: Any) -> tuple[Tensor, Tensor]:
        """Tensors in our layout, from a copy of onnxruntime's arrays."""
        return (
            torch.tensor(output).reshape(batch, seq, heads, d_value),
            torch.tensor(state),
        )

    if not with_binding:
        return Prepared(
            forward=lambda: session.run(None, feeds),
            outputs=lambda: tensors(*session.run(None, feeds)),
        )
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    written = [
        ort.OrtValue.ortvalue_from_shape_and_type(shapes[name], np.float32) for name in OUTPUTS
    ]
    for name, value in zip(OUTPUTS, written, strict=True):
        binding.bind_ortvalue_output(name, value)

    def outputs() -> tuple[Tensor, Tensor]:
        session.run_with_iobinding(binding)
        return tensors(*(value.numpy() for value in written))

    return Prepared(forward=lambda: session.run_with_iobinding(binding), outputs=outputs)


def _graph(
    feeds: dict[str, np.ndarray], shapes: dict[str, tuple[int, ...]], *, heads: int
) -> bytes:
    from onnx import TensorProto, helper

    node = helper.make_node(
        "LinearAttention",
        list(feeds),
        list(OUTPUTS),
        domain="com.microsoft",
        q_num_heads=heads,
        kv_num_heads=heads,
        update_rule="gated_delta",
        scale=1.0,
    )
    graph = helper.make_graph(
        [node],
        "rule",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
            for name, array in feeds.items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in OUTPUTS],
    )
    opset = helper.make_opsetid("com.microsoft", 1)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)
    return model.SerializeToString()


IMPLEMENTATIONS = tuple(
    Implementation(
        name=name,
        is_installed=lambda: find_spec("onnxruntime") is not None and find_spec("onnx") is not None,
        prepare=partial(_prepare, with_binding=with_binding),
        version=partial(version, "onnxruntime"),
        decays=("head", "channel"),
        is_bound=with_binding,
    )
    for name, with_binding in (("onnxruntime", False), ("onnxruntime_bound", True))
)
