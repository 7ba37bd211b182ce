"""Special cases of linear attention, beside their plain forms in `fla-core` and `transformers`.

The table of `docs/operator.md` as code: a member makes the arguments of our operator from its own
inputs, and a peer is somebody else's function of the same inputs. Peers scale queries themselves.
"""

import inspect
from functools import lru_cache

import pytest
import torch

import needs
from mixerloop.ops.linear_attention import linear_attention

AGREE = 1e-5  # float32, relative to the largest value of a tensor, or to 1 if that is larger
FORMS = ["torch", pytest.param("native", marks=needs.KERNEL.mark)]
BATCH, HEADS, D_KEY, D_VALUE = 2, 3, 16, 24
LENGTHS = (1, 77, 128)

# --- the members: their inputs, and our operator's arguments -------------------------------------


def scaled(query):
    return query * query.shape[-1] ** -0.5


def retnet(query, key, value):
    decays = torch.log(1 - 2.0 ** (-5 - torch.arange(HEADS)))
    return {"query": scaled(query), "key": key, "value": value,
            "log_decay": decays.expand(*key.shape[:3])}  # fmt: skip


def mamba2(C, B, x, A, dt, initial_state):  # noqa: N803
    return {"query": C, "key": B, "value": dt[..., None] * x, "log_decay": A * dt,
            "initial_state": initial_state}  # fmt: skip


def gla(query, key, value, g, initial_state):
    return {"query": scaled(query), "key": key, "value": value, "log_decay": g,
            "initial_state": initial_state}  # fmt: skip


def hgrn2(query, g, value, initial_state):
    return gla(query, 1 - g.exp(), value, g, initial_state)


def deltanet(query, key, value, beta, initial_state):
    b = beta[..., None]
    return {"query": scaled(query), "key": key, "value": b * value, "erase_key": b * key,
            "initial_state": initial_state}  # fmt: skip


def gated_deltanet(query, key, value, g, beta, initial_state):
    return {**deltanet(query, key, value, beta, initial_state), "log_decay": g}


kda = gated_deltanet  # with a decay for each channel


def gdn2(query, key, value, g, b, w, initial_state):
    return {"query": scaled(query), "key": key, "value": w * value, "log_decay": g,
            "erase_key": b * key, "initial_state": initial_state}  # fmt: skip


MEMBERS = {
    "RetNet": retnet,
    "Mamba2": mamba2,
    "GLA": gla,
    "HGRN2": hgrn2,
    "DeltaNet": deltanet,
    "Gated DeltaNet": gated_deltanet,
    "KDA": kda,
    "Gated DeltaNet-2": gdn2,
}
BY_CHANNEL = ("GLA", "HGRN2", "KDA", "Gated DeltaNet-2")


@lru_cache(maxsize=1)
def make_inputs(member, seq):
    generator = torch.Generator().manual_seed(seq)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    tokens = (BATCH, seq, HEADS)
    keys = normal(*tokens, D_KEY)
    made = {
        "query": normal(*tokens, D_KEY),
        "key": keys / keys.norm(dim=-1, keepdim=True),
        "value": normal(*tokens, D_VALUE),
        "g": -normal(*tokens, *([D_KEY] if member in BY_CHANNEL else [])).square() / 4,
        "beta": normal(*tokens).sigmoid(),
        "b": normal(*tokens, D_KEY).sigmoid(),
        "w": normal(*tokens, D_VALUE).sigmoid(),
        "A": -normal(HEADS).exp(),
        "dt": torch.nn.functional.softplus(normal(*tokens)),
        "initial_state": normal(BATCH, HEADS, D_KEY, D_VALUE),
    }
    made |= {"C": made["query"], "B": made["key"], "x": made["value"]}
    return {name: made[name] for name in inspect.signature(MEMBERS[member]).parameters}


# --- the peers -----------------------------------------------------------------------------------


def of_fla(rule, name, **options):
    function = getattr(needs.module(f"fla.ops.{rule}.naive"), name)
    return lambda *tensors, **named: function(*tensors, **named, **options)


def of_transformers(model, name):
    module = needs.module(f"transformers.models.{model}.modeling_{model}")
    return inspect.unwrap(getattr(module, name))  # not the kernel it may hide


def heads_first(tensors):
    return [tensor.transpose(1, 2) for tensor in tensors]


def fla_retention(i):
    output = of_fla("retention", "naive_retention")(*heads_first(i.values()))
    return output.transpose(1, 2), None


def fla_simple_gla(i):
    rule = of_fla("simple_gla", "naive_recurrent_simple_gla", scale=1.0)
    return rule(i["C"], i["B"], i["dt"][..., None] * i["x"], i["A"] * i["dt"],
                initial_state=i["initial_state"])  # fmt: skip


def fla_chunk_simple_gla(i):
    rule = of_fla("simple_gla", "naive_chunk_simple_gla", scale=1.0, output_final_state=True)
    return rule(i["C"], i["B"], i["dt"][..., None] * i["x"], i["A"] * i["dt"],
                initial_state=i["initial_state"])  # fmt: skip


def transformers_mamba2(i):
    scan = of_transformers("mamba2", "mamba2_chunk_scan")
    output, state = scan(
        i["x"], i["dt"], i["A"], i["B"], i["C"], chunk_size=64,
        initial_states=i["initial_state"].mT, return_final_states=True,
    )  # fmt: skip
    return output, state.mT


def fla_gla(i):
    rule = of_fla("gla", "naive_recurrent_gla", output_final_state=True)
    return rule(i["query"], i["key"], i["value"], i["g"], initial_state=i["initial_state"])


def fla_gla_of_hgrn2(i):
    return fla_gla({**i, "key": 1 - i["g"].exp()})


def fla_delta_rule(i):
    *tokens, state = i.values()
    output, final = of_fla("delta_rule", "delta_rule_recurrence")(
        *heads_first(tokens), initial_state=state
    )
    return output.transpose(1, 2), final


def fla_gated(rule, name):
    def run(i):
        return of_fla(rule, name, output_final_state=True)(
            i["query"], i["key"], i["value"], g=i["g"], beta=i["beta"],
            initial_state=i["initial_state"],
        )  # fmt: skip

    return run


def fla_gdn2(name):
    return lambda i: of_fla("gdn2", name, output_final_state=True)(
        i["query"], i["key"], i["value"], i["g"], i["b"], i["w"], initial_state=i["initial_state"]
    )


def transformers_gated(model, name):
    def run(i):
        return of_transformers(model, name)(
            i["query"], i["key"], i["value"], g=i["g"], beta=i["beta"],
            initial_state=i["initial_state"], output_final_state=True,
        )  # fmt: skip

    return run


PEERS = [
    ("RetNet", "fla", fla_retention),
    ("Mamba2", "fla recurrent", fla_simple_gla),
    ("Mamba2", "fla chunk", fla_chunk_simple_gla),
    ("Mamba2", "transformers", transformers_mamba2),
    ("GLA", "fla", fla_gla),
    ("HGRN2", "fla", fla_gla_of_hgrn2),
    ("DeltaNet", "fla", fla_delta_rule),
    ("Gated DeltaNet", "fla recurrent",
        fla_gated("gated_delta_rule", "naive_recurrent_gated_delta_rule")),
    ("Gated DeltaNet", "fla chunk", fla_gated("gated_delta_rule", "naive_chunk_gated_delta_rule")),
    ("Gated DeltaNet", "transformers chunk",
        transformers_gated("qwen3_next", "torch_chunk_gated_delta_rule")),
    ("Gated DeltaNet", "transformers recurrent",
        transformers_gated("qwen3_next", "torch_recurrent_gated_delta_rule")),
    ("KDA", "fla recurrent", fla_gated("kda", "naive_recurrent_kda")),
    ("KDA", "fla chunk", fla_gated("kda", "naive_chunk_kda")),
    ("KDA", "transformers chunk", transformers_gated("kimi_linear", "chunk_kimi_delta_attention")),
    ("KDA", "transformers recurrent",
        transformers_gated("kimi_linear", "recurrent_kimi_delta_attention")),
    ("Gated DeltaNet-2", "fla recurrent", fla_gdn2("naive_recurrent_gdn2")),
    ("Gated DeltaNet-2", "fla chunk", fla_gdn2("naive_chunk_gdn2")),
]  # fmt: skip
CASES = [
    pytest.param(member, peer, seq, id=f"{member}, {name}, {seq}")
    for member, name, peer in PEERS
    for seq in LENGTHS
    if seq % 64 == 0 or (member, name) != ("KDA", "fla chunk")  # which takes whole chunks only
]

# --- the comparison ------------------------------------------------------------------------------


def run(function, inputs, *, state_given):
    """Output, final state and the gradient of every input for fixed cotangents."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    output, state = function(leaves)
    results = [output, state] if state_given else [output]
    generator = torch.Generator().manual_seed(0)
    cotangents = [torch.randn(result.shape, generator=generator) for result in results]
    gradients = torch.autograd.grad(results, list(leaves.values()), cotangents)
    return {
        **dict(zip(("output", "state"), results, strict=False)),
        **{f"d_{name}": gradient for name, gradient in zip(leaves, gradients, strict=True)},
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("member", "peer", "seq"), CASES)
def test_a_member_is_what_others_compute(member, peer, seq, form):
    def ours(inputs):
        return linear_attention(**MEMBERS[member](**inputs), form=form)

    inputs = make_inputs(member, seq)
    state_given = member != "RetNet"  # whose plain form has no state
    theirs = run(peer, inputs, state_given=state_given)
    for name, got in run(ours, inputs, state_given=state_given).items():
        wanted = theirs[name]
        assert got.shape == wanted.shape
        assert got.dtype == wanted.dtype == torch.float32
        error = (got - wanted).abs().max() / wanted.abs().max().clamp_min(1)
        assert error <= AGREE, f"{name}: {error:.1e}"


def test_every_member_has_a_peer():
    assert {member for member, _, _ in PEERS} == set(MEMBERS)
