"""Form `fla` in Triton's interpreter, on any machine: its errors against the float64 definition.

    python tests/fla_interpreted.py rules transport

Prints JSON: for each case the largest error of each tensor and the bound of the case. Triton and
flash-linear-attention read the environment when they are imported, so this is a process of its own.
"""

import builtins
import importlib
import itertools
import json
import math
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ |= {"TRITON_INTERPRET": "1", "FLA_DISABLE_BACKEND_DISPATCH": "1"}
sys.path[:0] = [str(Path(__file__).parent)]
warnings.simplefilter("ignore")  # fla warns on a machine without a GPU

import numpy as np  # noqa: E402
import torch  # noqa: E402
from triton import language  # noqa: E402
from triton.runtime import interpreter  # noqa: E402
from triton.runtime.autotuner import Autotuner  # noqa: E402

from mixerloop.config import FormChoice  # noqa: E402
from mixerloop.data.windows import DrawnWindows, spread_positions  # noqa: E402
from mixerloop.model.decoding import advance, prefill, start  # noqa: E402
from mixerloop.ops.fla import FORGETS  # noqa: E402
from mixerloop.ops.linear_attention import linear_attention  # noqa: E402
from mixerloop.training.loss import Loss  # noqa: E402
from mixerloop.transport.measurement import transport_figures  # noqa: E402
from rule_cases import (  # noqa: E402
    GATED_DELTA_RULE,
    TOLERANCE,
    TWICE,
    make_inputs,
    results,
    stored_as,
)
from stacks import STACKS, large_model, stack_config  # noqa: E402

MEMBERS = {
    "gated delta rule": GATED_DELTA_RULE,
    "KDA": {"decay": "channel", "erase": "own"},
    "simple GLA": {"decay": "head", "erase": "none"},
    "GLA": {"decay": "channel", "erase": "none"},
}
RECURRENT = {torch.float32: 1e-5, torch.bfloat16: 2.0**-6}
CHUNK_TOKENS = 64
OF_A_SUM = 2.0**-20
"""Of the sum of the log decays of a chunk. An exponent is the difference of two such sums, each
rounded to 2^-24 seven times: six in a scan over 64 tokens, and once as an exponent of two."""
OF_A_MODEL, TIMES_TORCH = 1e-5, 16
"""A model multiplies the rounding of its operators; form torch shows how much. Under decays of -5
the gradients of the rule have 15 times the error of form torch, which adds decays in float64."""
OF_TRANSPORT = 1e-4
"""Of the largest figure: increments of a readout are small differences of readouts."""
TINY = torch.finfo(torch.float64).tiny
Errors = dict[str, float]


def prepare() -> None:
    """Make the interpreter run what the compiler runs.

    The kernels call methods of the variable of a loop, which in Python is an `int` even where the
    bound is a tensor. The autotuner would time every configuration; here the first is taken.
    """

    def tensor_range(*bounds):
        numbers = builtins.range(*map(int, bounds))
        if any(isinstance(bound, language.tensor) for bound in bounds):
            return map(interpreter._implicit_cvt, numbers)
        return numbers

    Autotuner._bench = lambda self, *arguments, config, **meta: [0.0] * 3
    for name in ("gated_delta_rule", "kda", "simple_gla", "gla"):
        importlib.import_module(f"fla.ops.{name}")
    for name, module in list(sys.modules.items()):
        if name.startswith("fla.ops.") and isinstance(module, ModuleType):
            vars(module)["range"] = tensor_range


def errors(got, wanted, *, floor: float) -> Errors:
    """The largest error of each tensor, relative to its largest value but at least to the floor."""
    assert got.keys() == wanted.keys()
    return {
        name: ((got[name].double() - right).abs().max() / right.abs().max().clamp_min(floor)).item()
        for name, right in wanted.items()
    }


def recurrent() -> Iterator[tuple[str, Errors, float]]:
    """The kernel for short sequences without gradients, also on tokens in bfloat16."""
    for seq, sizes, dtype in itertools.product(
        (1, 5, 17), ((16, 16), (72, 72), (16, 40)), RECURRENT
    ):
        inputs = make_inputs(**GATED_DELTA_RULE, seq=seq, sizes=sizes)
        with torch.no_grad():
            got = linear_attention(**stored_as(dtype, inputs), form="fla")
            wanted = linear_attention(**inputs, form="definition")
        assert got[0].dtype == dtype
        found = errors(dict(enumerate(got)), dict(enumerate(wanted)), floor=1)
        yield f"{seq} tokens, {sizes}, {dtype}", found, RECURRENT[dtype]


def chunked(member: str, *, forgets: int = 0, **case: Any) -> tuple[str, Errors, float]:
    """The kernel with a backward: output, final state and all gradients."""
    inputs = stored_as(torch.float32, make_inputs(**MEMBERS[member], **case))
    inputs["log_decay"][:, 3 : 3 + forgets] = -math.inf
    wanted = results({name: x.double() for name, x in inputs.items()}, "definition")
    found = errors(results(inputs, "fla"), wanted, floor=1)
    decays = inputs["log_decay"].clamp(min=FORGETS)
    sums = [chunk.sum(1).abs().max().item() for chunk in decays.split(CHUNK_TOKENS, dim=1)]
    found["d_log_decay"] /= TWICE
    return f"{member}, {case}", found, TOLERANCE[torch.float32] + OF_A_SUM * max(sums)


def rules() -> Iterator[tuple[str, Errors, float]]:
    """Lengths round a chunk; widths that are and are not powers of two."""
    yield chunked("gated delta rule", seq=1, sizes=(16, 72), state=True)
    yield chunked("gated delta rule", seq=64, sizes=(16, 72), state=False)
    for member in MEMBERS:
        yield chunked(member, seq=3, sizes=(72, 16), state=False)
        yield chunked(member, seq=130, sizes=(72, 16), state=True, decays="weak")


def every_rule() -> Iterator[tuple[str, Errors, float]]:
    """All pairs of widths; mixed decays without a state, weak decays with one."""
    widths = list(itertools.product((16, 72), (16, 72)))
    for member, seq, sizes, state in itertools.product(
        MEMBERS, (1, 3, 64, 130), widths, (False, True)
    ):
        decays = "weak" if state else "mixed"
        yield chunked(member, seq=seq, sizes=sizes, state=state, decays=decays)


def forgetting() -> Iterator[tuple[str, Errors, float]]:
    """Log decays of -inf forget, and everything stays finite."""
    for member in MEMBERS:
        yield chunked(member, seq=64, decays="weak", forgets=10)


def computed(stack: str, form: FormChoice, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The loss of a model, its gradients, and the logits of tokens decoded after a prefill."""
    model = large_model(stack_config(stack), form=form, dtype=dtype)
    tokens = torch.randint(12, (1, 71), generator=torch.Generator().manual_seed(0))
    found = []
    for recompute in (False, True):
        model.zero_grad()
        loss = Loss(model, recompute=recompute)(tokens[:, :-1], tokens[:, 1:]).total
        loss.backward()
        gradients = {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
        found.append({"loss": loss.detach(), **gradients})
        model.zero_grad()
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), f"{stack}: {name} changes if recomputed"
    logits, state = prefill(model, tokens[:, :68], start(model))
    last, _ = advance(model, tokens[:, 68:70], state)
    return found[0] | {"prefill": logits, "decoded": last}


def compared(stack: str) -> tuple[str, Errors, float]:
    """A model in form fla, and how large the errors of form torch are."""
    wanted = computed(stack, "definition", torch.float64)
    found, in_torch = (
        errors(computed(stack, form, torch.float32), wanted, floor=TINY)
        for form in ("fla", "torch")
    )
    return stack, found, OF_A_MODEL + TIMES_TORCH * max(in_torch.values())


def models() -> Iterator[tuple[str, Errors, float]]:
    """Two layers with a mixer that runs twice."""
    yield compared("gated_delta_net")


def every_model() -> Iterator[tuple[str, Errors, float]]:
    """All stacks."""
    yield from map(compared, STACKS)


def figures(form: FormChoice, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The figures of transport, without their intervals."""
    config = stack_config("gated_delta_net").changed(num_layers=1)
    model = large_model(config, form=form, dtype=dtype)
    tokens = np.random.default_rng(0).integers(12, size=(2, 70))
    found = transport_figures(
        model,
        DrawnWindows(tokens, spread_positions(70, 3)),
        schedule=model.schedule,
        compute_dtype="float32",
        seed=0,
        removal=False,
    )
    names = ("marginal_itr", "hellinger_squared", "target_gain")
    return {
        "itr": torch.tensor(found.itr.value, dtype=torch.float64),
        **{
            name: torch.tensor([one.value for one in vars(found)[name]], dtype=torch.float64)
            for name in names
        },
    }


def transport() -> Iterator[tuple[str, Errors, float]]:
    """Transport in float32, whose noise floor runs in float64."""
    wanted = figures("definition", torch.float64)
    yield "gated_delta_net", errors(figures("fla", torch.float32), wanted, floor=TINY), OF_TRANSPORT


PARTS = {
    part.__name__: part
    for part in (recurrent, rules, forgetting, models, transport, every_rule, every_model)
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    prepare()
    cases = [
        {"part": part, "case": case, "errors": found, "bound": bound}
        for part in sys.argv[1:]
        for case, found, bound in PARTS[part]()
    ]
    print(json.dumps(cases))
