"""Every peer of the operator benchmark computes the rule that it is timed for.

Against the definition in float64, on the inputs that the peer rounds itself to.
"""

import dataclasses

import pytest
import torch

import needs
from mixerloop.benchmarking.operator_speed import Case, make_inputs
from mixerloop.benchmarking.own_forms import NATIVE_BFLOAT16, TOKENS, ours
from mixerloop.benchmarking.peers.registry import PEERS

NEEDS = {
    "onnxruntime": (needs.package("onnxruntime"), needs.package("onnx")),
    "onnxruntime_bound": (needs.package("onnxruntime"), needs.package("onnx")),
    "ggml": (needs.GGML,),
    "vllm": (needs.VLLM,),
    "vllm_single": (needs.VLLM,),
    "mlx": (needs.package("mlx"),),
    "transformers": (needs.package("transformers"),),
    "fla_naive": (needs.package("fla"), needs.package("triton")),
    "native_bfloat16": (needs.KERNEL,),
}
TOLERANCES = {  # of the largest value
    torch.float32: 1e-5,
    torch.bfloat16: 2**-6,  # four times the distance of neighbouring numbers at 1
}
CASES = {
    f"{name}, decay per {decay}": Case(shape=shape, decay=decay)
    for name, shape in {
        "chunks": (2, 128, 2, 64),
        "a part of a chunk": (2, 37, 3, 64),
        "narrow heads": (1, 70, 2, 24),
        "one token": (2, 1, 4, 64),
    }.items()
    for decay in ("head", "channel")
}
SUPPORTED = [
    (peer, name)
    for peer in (*PEERS, NATIVE_BFLOAT16)
    for name, case in CASES.items()
    if peer.why_not(make_inputs(case)) is None
]


@pytest.mark.parametrize(
    ("peer", "case"),
    [pytest.param(peer, CASES[name], id=f"{peer.name}, {name}") for peer, name in SUPPORTED],
)
def test_a_peer_computes_the_rule(peer, case):
    for need in NEEDS[peer.name]:
        need.or_skip()
    inputs = make_inputs(case)
    cotangents = (torch.randn_like(inputs["value"]), torch.randn_like(inputs["initial_state"]))
    exact = {
        name: (tensor.to(peer.dtype) if name in TOKENS else tensor).double().requires_grad_()
        for name, tensor in inputs.items()
    }
    results = ours("definition")(exact)
    gradients = torch.autograd.grad(
        results, list(exact.values()), [tensor.double() for tensor in cotangents]
    )
    wanted = dict(zip(exact, gradients, strict=True))
    prepared = peer.prepare(inputs, cotangents)
    with torch.no_grad():
        prepared.forward()  # a call leaves nothing behind that changes the next results
        for got, right in zip(prepared.outputs(), results, strict=True):
            assert_near(got, right, TOLERANCES[peer.dtype])
    if prepared.gradients is not None:
        got = prepared.gradients()
        assert set(got) == set(wanted)
        for name, gradient in wanted.items():
            assert_near(got[name], gradient, TOLERANCES[peer.dtype])
    if prepared.rest is not None:
        prepared.rest()


def assert_near(got, wanted, tolerance):
    assert got.shape == wanted.shape
    assert (got - wanted).abs().max() <= tolerance * wanted.abs().max()


def test_all_peers_are_tested():
    assert {peer.name for peer, _ in SUPPORTED} == set(NEEDS)
    assert {peer.name for peer in PEERS} == set(NEEDS) - {"native_bfloat16"}


def test_a_peer_says_what_it_does_not_support():
    inputs = make_inputs(Case(shape=(1, 65, 1, 72), decay="channel"))
    reasons = {peer.name: peer.why_not(inputs) for peer in PEERS}
    assert {name for name, reason in reasons.items() if reason is None} == {
        *("onnxruntime", "onnxruntime_bound", "ggml", "transformers")
    }
    assert reasons["mlx"] == reasons["vllm"] == "has no decay per channel"
    assert reasons["fla_naive"] == "takes multiples of 64 tokens with a decay per channel"
    head = dataclasses.replace(CASES["chunks, decay per head"], shape=(1, 64, 1, 72))
    reasons = {peer.name: peer.why_not(make_inputs(head)) for peer in PEERS}
    assert reasons["vllm"] == "takes heads of 64 and 128"
    assert reasons["vllm_single"] == "takes single tokens"
