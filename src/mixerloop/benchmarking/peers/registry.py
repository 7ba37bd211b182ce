"""All peers, in the order of the tables."""

from mixerloop.benchmarking.implementation import Implementation
from mixerloop.benchmarking.peers import fla, ggml, mlx, onnxruntime, transformers, vllm

PEERS: tuple[Implementation, ...] = (
    *onnxruntime.IMPLEMENTATIONS,
    ggml.IMPLEMENTATION,
    *vllm.IMPLEMENTATIONS,
    mlx.IMPLEMENTATION,
    transformers.IMPLEMENTATION,
    fla.IMPLEMENTATION,
)
