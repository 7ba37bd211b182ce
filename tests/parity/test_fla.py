"""The rules of flash-linear-attention. Without a GPU their kernels run in Triton's interpreter.

What this cannot try: compiled kernels, products in bfloat16, and anything on CUDA.
"""

import importlib.util
import json
import subprocess
import sys

import pytest
import torch

import needs
from mixerloop.model.initialization import meta_model
from mixerloop.ops import fla, native_library
from mixerloop.ops import gated_delta_rule as rule
from mixerloop.ops.chunked import chunked_gated_delta_rule
from mixerloop.ops.gated_delta_rule import choose_form, gated_delta_rule
from rule_cases import GATED_DELTA_RULE, make_inputs
from small_model import small_config


@needs.package("fla").mark
@needs.package("triton").mark
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(
            ["recurrent", "rules", "forgetting", "models", "transport"], marks=pytest.mark.slow
        ),
        pytest.param(["every_rule", "every_model"], marks=pytest.mark.nightly),
    ],
    ids=["some", "every"],
)
def test_the_kernels_agree_with_the_definition_in_tritons_interpreter(parts, request):
    """In a process of its own: Triton reads the environment when it is imported."""
    script = request.path.parents[1] / "fla_interpreted.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, *parts],
        env={"PATH": "", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout)
    assert {case["part"] for case in cases} == set(parts)
    wrong = [
        case
        for case in cases
        if not all(error <= case["bound"] for error in case["errors"].values())
    ]
    assert wrong == []


@needs.package("fla").mark
@needs.package("triton").mark
def test_it_is_refused_on_a_cpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    inputs = make_inputs(**GATED_DELTA_RULE, seq=1, sizes=(2, 2))
    with pytest.raises(ValueError, match="fla needs a CUDA device; choose native or torch"):
        gated_delta_rule(**inputs, form="fla")


def test_auto_on_cuda_is_fla_where_it_is_installed(monkeypatch):
    found = {"fla": True}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: object() if found["fla"] else None
    )
    assert choose_form("auto", "cuda") == "fla"
    found["fla"] = False
    assert choose_form("auto", "cuda") == "torch"
    with pytest.raises(ValueError, match=r"not installed: pip install 'mixerloop\[fla\]'"):
        choose_form("fla", "cuda")


def test_the_native_kernel_is_refused_on_cuda(monkeypatch):
    monkeypatch.setattr(native_library, "library", lambda: object())
    with pytest.raises(ValueError, match="native runs on CPUs; choose fla or torch"):
        choose_form("native", "cuda")


@pytest.mark.parametrize(
    ("mixer", "d_head", "form"),
    [
        ("gated_delta_net", 256, "fla"),
        ("gated_delta_net", 257, "torch"),
        ("kimi_delta", 257, "torch"),
        ("gated_delta_net_2", 16, "torch"),
        ("retention", 258, "fla"),
    ],
)
def test_a_mixer_for_which_there_is_no_kernel_runs_in_torch_and_says_so(
    monkeypatch, mixer, d_head, form
):
    monkeypatch.setattr(fla, "is_installed", lambda: True)
    sizes = {"num_layers": 1, "d_model": 16, "vocab_size": 12, "swiglu": {"d_ffn": 24}}
    config = small_config(**sizes, mixer=mixer, **{mixer: {"num_heads": 1, "d_head": d_head}})
    forms = meta_model(config, form="fla").forms()
    assert forms.get("gated_delta_rule", forms.get("linear_attention")) == form


def test_wide_keys_run_in_torch_under_auto_and_are_refused_otherwise(monkeypatch):
    inputs = make_inputs(**GATED_DELTA_RULE, seq=1, sizes=(257, 2))
    inputs = {name: tensor.float() for name, tensor in inputs.items()}
    with pytest.raises(ValueError, match=r"no kernel for keys of 257 numbers .* 256; choose torch"):
        fla.fla_gated_delta_rule(**inputs)
    monkeypatch.setattr(rule, "run_directly", lambda *_: None)
    monkeypatch.setattr(rule, "choose_form", lambda *_: "fla")
    output, _ = rule.gated_delta_rule(**inputs, form="auto")
    assert torch.equal(output, chunked_gated_delta_rule(**inputs)[0])


def test_float64_is_refused():
    with pytest.raises(ValueError, match="fla computes in float32; choose torch"):
        fla.fla_gated_delta_rule(**make_inputs(**GATED_DELTA_RULE, seq=1, sizes=(2, 2)))
