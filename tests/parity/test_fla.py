"""The rule of flash-linear-attention. Without a GPU its recurrent kernel can run in Python.

What this cannot try: the chunked kernel, gradients, and anything on CUDA.
"""

import importlib.util
import subprocess
import sys

import pytest

import needs
from mixerloop.ops import fla, native_library
from mixerloop.ops.gated_delta_rule import choose_form, gated_delta_rule
from rule_cases import GATED_DELTA_RULE, make_inputs

UNDER_INTERPRETER = """
import itertools, sys, torch
sys.path[:0] = sys.argv[1:]
from rule_cases import GATED_DELTA_RULE, make_inputs
from mixerloop.ops.gated_delta_rule import gated_delta_rule

torch.set_grad_enabled(False)
for seq, sizes in itertools.product((1, 5, 17), ((16, 16), (72, 72), (16, 40))):
    inputs = make_inputs(**GATED_DELTA_RULE, seq=seq, sizes=sizes)
    wanted = gated_delta_rule(**inputs, form="definition")
    for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 2.0**-6)):
        tokens = {k: v.to(dtype) if v.ndim == 4 and k != "initial_state" else v.float()
                  for k, v in inputs.items()}
        found = gated_delta_rule(**tokens, form="fla")
        assert found[0].dtype == dtype
        for one, other in zip(found, wanted, strict=True):
            error = (one.double() - other).abs().max() / other.abs().max().clamp_min(1)
            assert error < bound, (seq, sizes, dtype, float(error))
print("agree")
"""


@pytest.mark.slow
@needs.package("fla").mark
@needs.package("triton").mark
def test_the_recurrent_kernel_computes_the_rule(request):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", UNDER_INTERPRETER, request.path.parents[1]],
        env={"TRITON_INTERPRET": "1", "PATH": "", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "agree", done.stderr


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


def test_float64_is_refused():
    with pytest.raises(ValueError, match="fla computes in float32; choose torch"):
        fla.fla_gated_delta_rule(**make_inputs(**GATED_DELTA_RULE, seq=1, sizes=(2, 2)))
