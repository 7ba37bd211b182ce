"""The gated delta rule in chunks, with its backward written by hand, against the definition.

`test_linear_attention.py` compares the rule as a member of its family and
`test_linear_attention_family.py` compares it with other people's code.
"""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import needs
from mixerloop.ops import chunked
from mixerloop.ops.gated_delta_rule import choose_form, gated_delta_rule
from rule_cases import GATED_DELTA_RULE, TOLERANCE, assert_close, check, make_inputs, results

FAST_FORMS = ["torch", pytest.param("native", marks=needs.KERNEL.mark)]
LONG = 1000  # a second of the definition
CASES = [
    *({"seq": seq} for seq in (1, 2, 63, 64, 65, 130)),
    *({"seq": 65, "sizes": sizes} for sizes in ((64, 64), (72, 72), (128, 128), (16, 40))),
    *({"seq": 65, "decays": decays} for decays in ("zero", "brutal", "brutal then mild", "weak")),
    *({"seq": 130, "strengths": strengths} for strengths in ("zero", "one")),
    {"seq": 130, "strengths": "one", "decays": "zero"},
    {"seq": 130, "state": False},
    *(
        pytest.param({"seq": LONG, "batch": 2} | case, marks=pytest.mark.slow)
        for case in ({"sizes": (16, 40)}, {"sizes": (128, 128)}, {"decays": "brutal then mild"})
    ),
]


def rule_inputs(**case):
    return make_inputs(**GATED_DELTA_RULE, **case)


@pytest.mark.parametrize("form", FAST_FORMS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_outputs_state_and_gradients_match_the_definition(case, dtype, form):
    check(dtype, form, gated_delta_rule, **GATED_DELTA_RULE, **case)


@given(
    seq=st.integers(1, 40),
    batch=st.integers(1, 3),
    heads=st.integers(1, 3),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    chunk_tokens=st.integers(1, 16),
    tile_tokens=st.integers(1, 64),
)
def test_chunks_and_tiles_of_any_size_give_the_same_values(
    seq, batch, heads, sizes, chunk_tokens, tile_tokens
):
    inputs = rule_inputs(seq=seq, sizes=sizes, batch=batch, heads=heads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "CHUNK_TOKENS", chunk_tokens)
        patch.setattr(chunked, "TILE_TOKENS", tile_tokens)
        got = results(inputs, "torch", gated_delta_rule)
    assert_close(got, results(inputs, "definition"), TOLERANCE[torch.float64])


@pytest.mark.parametrize("form", ["definition", *FAST_FORMS])
def test_autocast_does_not_reach_into_the_rule_or_its_backward(form):
    inputs = {name: tensor.float() for name, tensor in rule_inputs(seq=65).items()}

    def run() -> dict[Any, torch.Tensor]:
        if form != "definition":
            return results(inputs, form, gated_delta_rule)
        return dict(enumerate(gated_delta_rule(**inputs, form=form)))  # autograd would cast

    alone = run()
    with torch.autocast("cpu", torch.bfloat16):
        inside = run()
    for name, tensor in alone.items():
        assert torch.equal(inside[name], tensor), name


def test_one_wide_input_makes_the_sums_wide():
    inputs = rule_inputs(seq=65)
    exact, state = gated_delta_rule(**inputs, form="torch")
    inputs["value"] = inputs["value"].float()
    near, near_state = gated_delta_rule(**inputs, form="auto")
    assert near.dtype == torch.float32
    assert state.dtype == near_state.dtype == torch.float64
    torch.testing.assert_close(near.double(), exact, rtol=0, atol=1e-6)


@pytest.mark.usefixtures("shapes_unchecked")
def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match="unknown form 'fast'; known: auto, definition"):
        choose_form("fast")  # pyright: ignore[reportArgumentType]
