"""Models of `transformers` with our operator installed, beside the same models without it.

flash-linear-attention, where it is installed, takes the place of the torch functions and cannot run
on a CPU. The fixture `torch_only` puts the torch functions back: what `transformers` runs without
flash-linear-attention.
"""

import functools
import inspect
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad

import needs
from mixerloop.benchmarking.float64 import InFloat64
from mixerloop.interop import transformers_functions, transformers_kernels
from mixerloop.interop.transformers_kernels import MODELS

pytestmark = needs.package("transformers").mark

AGREE = 1e-4  # float32, relative to the largest value of each tensor
FUNCTIONS_AGREE = 1e-5  # the functions alone
BFLOAT16_AGREES = 2.0**-7  # one rounding of the output
LENGTH = 150  # not a multiple of any chunk
LAYERS = ["linear_attention", "full_attention", "linear_attention"]


@dataclass(frozen=True)
class Tiny:
    """A small model of `transformers` with random weights."""

    model: str
    prefix: str
    config: str
    options: dict
    operator: str = "gated_delta_rule"  # the one of ours that runs
    num_mixers: int = 2


ATTENTION = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "layer_types": LAYERS,
    "initializer_range": 0.2,  # so that the mixers show in the logits
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
DELTA_NET = {
    "num_key_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
TINY = {
    "Qwen3-Next": Tiny(
        "qwen3_next",
        "Qwen3Next",
        "Qwen3NextConfig",
        {**ATTENTION, **DELTA_NET, "head_dim": 16, "mlp_only_layers": [0, 1, 2], "num_experts": 4},
    ),
    "Qwen3.5": Tiny(
        "qwen3_5", "Qwen3_5", "Qwen3_5TextConfig", {**ATTENTION, **DELTA_NET, "head_dim": 16}
    ),
    "OLMo-hybrid": Tiny(
        "olmo_hybrid",
        "OlmoHybrid",
        "OlmoHybridConfig",
        {**ATTENTION, **DELTA_NET, "linear_num_key_heads": 4},
    ),
    "Kimi-Linear": Tiny(
        "kimi_linear",
        "KimiLinear",
        "KimiLinearConfig",
        {
            **ATTENTION,
            "num_key_value_heads": 4,
            "linear_num_heads": 3,
            "linear_head_dim": 16,
            "mlp_layer_types": ["dense"] * 3,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
    ),
    "Mamba2": Tiny(
        "mamba2",
        "Mamba2",
        "Mamba2Config",
        {
            "vocab_size": 61,
            "hidden_size": 48,
            "num_hidden_layers": 2,
            "num_heads": 6,
            "head_dim": 16,
            "state_size": 24,
            "n_groups": 2,
            "chunk_size": 64,
            "initializer_range": 0.2,
            "pad_token_id": None,
            "bos_token_id": None,
            "eos_token_id": None,
        },
        operator="linear_attention",
    ),
}


def module_of(model):
    return needs.module(f"transformers.models.{model}.modeling_{model}")


@pytest.fixture
def torch_only(monkeypatch):
    for name, models in MODELS.items():
        for model in models:
            module = module_of(model)
            monkeypatch.setattr(module, name, inspect.unwrap(getattr(module, name)))


@pytest.fixture
def calls(monkeypatch):
    """How often each of our operators ran."""
    counts = Counter()

    def counting(name, function):
        @functools.wraps(function)
        def run(**tensors):
            counts[name] += 1
            return function(**tensors)

        return run

    for name in ("gated_delta_rule", "linear_attention"):
        function = getattr(transformers_functions, name)
        monkeypatch.setattr(transformers_functions, name, counting(name, function))
    return counts


@pytest.fixture(params=TINY)
def tiny_model(request, torch_only):
    return make(TINY[request.param]), TINY[request.param]


def make(tiny):
    configuration = needs.module(f"transformers.models.{tiny.model}.configuration_{tiny.model}")
    config = getattr(configuration, tiny.config)(**tiny.options)
    torch.manual_seed(5)
    return getattr(module_of(tiny.model), f"{tiny.prefix}ForCausalLM")(config).eval()


def tokens_of(length=LENGTH, batch=2):
    return torch.randint(0, 61, (batch, length), generator=torch.Generator().manual_seed(1))


def logits_and_gradients(model):
    tokens = tokens_of()
    model.zero_grad()
    logits = model(tokens, use_cache=False).logits
    torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
    ).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), gradients


def relative(got, wanted):
    return ((got.double() - wanted.double()).abs().max() / wanted.abs().max()).item()


def test_logits_and_gradients_are_those_without_the_operator(tiny_model, calls):
    """Gradients of `transformers` may be further than 1e-4 from a run of the model in float64.

    That of Qwen3-Next's A_log is. Ours must be within 1e-4 of float64 for every parameter. Where
    ours and theirs differ by more than 1e-4, the larger error must be theirs.
    """
    model, tiny = tiny_model
    logits, gradients = logits_and_gradients(model)
    assert not calls
    with transformers_kernels.install():
        our_logits, our_gradients = logits_and_gradients(model)
    assert calls == {tiny.operator: tiny.num_mixers}
    with InFloat64():
        right_logits, right = logits_and_gradients(model.double())
    assert right_logits.dtype == torch.float64
    assert relative(our_logits, logits) <= AGREE
    assert relative(our_logits, right_logits) <= AGREE
    assert our_gradients.keys() == gradients.keys() == right.keys()
    assert len(gradients) == len(list(model.parameters()))
    for name, ours in our_gradients.items():
        assert relative(ours, right[name]) <= AGREE, name
        if relative(ours, gradients[name]) > AGREE:
            assert relative(gradients[name], right[name]) > relative(ours, right[name]), name


def test_generation_with_a_cache_gives_the_same_tokens(tiny_model, calls):
    model, tiny = tiny_model

    def generate():
        written = model.generate(
            tokens_of(37),
            max_new_tokens=20,
            do_sample=False,
            use_cache=True,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return written.sequences, torch.stack(written.logits)

    sequences, logits = generate()
    assert not calls
    with transformers_kernels.install():
        our_sequences, our_logits = generate()
    forwards = 1 if tiny.model == "mamba2" else 20  # single tokens of Mamba2 stay with transformers
    assert calls == {tiny.operator: forwards * tiny.num_mixers}
    assert len(sequences[0].unique()) > 5
    assert torch.equal(our_sequences, sequences)
    assert relative(our_logits, logits) <= AGREE


# --- the functions alone -------------------------------------------------------------------------

EACH = [(name, model) for name, models in MODELS.items() for model in models]
ONE_OF_EACH = [(name, models[0]) for name, models in MODELS.items()]
RULES = {name: models for name, models in MODELS.items() if name != "mamba2_chunk_scan"}


def arguments(name, *, seq=70, state=True, dtype=torch.float32, l2norm=True):
    """What a layer passes to a function; log decays, steps and states are float32, as there."""
    generator = torch.Generator().manual_seed(2)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    batch, heads, d_key, d_value = 2, 4, 16, 24
    if name == "mamba2_chunk_scan":
        return {
            "hidden_states": normal(batch, seq, heads, d_value).to(dtype),
            "dt": normal(batch, seq, heads).to(dtype),
            "A": -normal(heads).exp(),
            "B": normal(batch, seq, 2, d_key).to(dtype),
            "C": normal(batch, seq, 2, d_key).to(dtype),
            "chunk_size": 32,
            "D": normal(heads).to(dtype),
            "dt_bias": normal(heads).to(dtype),
            "initial_states": normal(batch, heads, d_value, d_key) if state else None,
            "dt_softplus": True,
            "dt_limit": (0.1, 2.0),
            "return_final_states": state,
            "z": None,
        }
    per_channel = (d_key,) if "kimi" in name else ()
    keys = normal(batch, seq, heads, d_key)
    return {
        "query": normal(batch, seq, heads, d_key).to(dtype),
        "key": (keys if l2norm else keys / keys.norm(dim=-1, keepdim=True)).to(dtype),
        "value": normal(batch, seq, heads, d_value).to(dtype),
        "g": -normal(batch, seq, heads, *per_channel).square() / 4,
        "beta": normal(batch, seq, heads).sigmoid().to(dtype),
        "initial_state": normal(batch, heads, d_key, d_value) if state else None,
        "output_final_state": state,
        "use_qk_l2norm_in_kernel": l2norm,
    }


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize(
    ("name", "model", "options"),
    [
        *((name, model, {}) for name, model in EACH),
        *((name, model, {"state": False}) for name, model in ONE_OF_EACH),
        *(
            (name, model, {"dtype": dtype})
            for name, model in ONE_OF_EACH
            for dtype in (torch.bfloat16, torch.float64)
        ),
        *((name, models[0], {"l2norm": False}) for name, models in RULES.items()),
    ],
    ids=str,
)
def test_a_function_returns_what_it_did_before(name, model, options, torch_only, calls):
    module, inputs = module_of(model), arguments(name, **options)
    before = as_tuple(getattr(module, name)(**inputs))
    with transformers_kernels.install():
        after = as_tuple(getattr(module, name)(**inputs))
    assert calls.total() == 1
    for ours, theirs in zip(after, before, strict=True):
        if theirs is None:
            assert ours is None
        else:
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            assert ours.is_contiguous()
            narrow = theirs.dtype == torch.bfloat16
            assert relative(ours, theirs) <= (BFLOAT16_AGREES if narrow else FUNCTIONS_AGREE)


# --- calls that our operators do not cover -------------------------------------------------------


@pytest.fixture(params=ONE_OF_EACH, ids=lambda each: each[0])
def stubbed(request, monkeypatch):
    """A function of `transformers` that counts its calls, installed over; its usual arguments."""
    name, model = request.param
    module = module_of(model)
    original = inspect.unwrap(getattr(module, name))
    ran = []

    @functools.wraps(original)
    def counting(*args, **kwargs):
        ran.append(kwargs)
        return "the original"

    monkeypatch.setattr(module, name, counting)
    with transformers_kernels.install():
        yield getattr(module, name), arguments(name), ran


def test_ordinary_calls_are_ours(stubbed, calls):
    function, inputs, ran = stubbed
    function(**inputs, num_items_in_batch=3, cu_seqlens=None, use_gate_in_kernel=False)
    assert calls.total() == 1
    assert not ran


@pytest.mark.parametrize("keyword", ["cu_seqlens", "seq_idx", "scale", "use_gate_in_kernel"])
def test_a_keyword_that_we_cannot_honour_goes_to_the_original(stubbed, calls, keyword):
    function, inputs, ran = stubbed
    packed = torch.tensor([0, 30, 70])
    assert function(**inputs, **{keyword: packed}) == "the original"
    assert ran[0][keyword] is packed
    assert not calls


def on_meta(name, x):
    return x.to("meta") if isinstance(x, torch.Tensor) else x


def without_tokens(name, x):
    is_of_tokens = isinstance(x, torch.Tensor) and x.ndim > 2 and x.shape[1] == 70
    return x[:, :0] if is_of_tokens else x


def broadcasting(name, x):
    return x[:, :, :1] if name in ("dt", "beta") else x


@pytest.mark.parametrize("change", [on_meta, without_tokens, broadcasting])
def test_tensors_that_we_cannot_take_go_to_the_original(stubbed, calls, change):
    function, inputs, ran = stubbed
    changed = {name: change(name, x) for name, x in inputs.items()}
    assert function(**changed) == "the original"
    assert len(ran) == 1
    assert not calls


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own forward mode
def test_other_derivatives_and_export_go_to_the_original(stubbed, calls, monkeypatch):
    function, inputs, ran = stubbed
    first = next(iter(inputs))

    def loss(x):
        assert function(**(inputs | {first: x})) == "the original"
        return x.sum()

    torch.func.grad(loss)(inputs[first])
    with forward_ad.dual_level():
        loss(forward_ad.make_dual(inputs[first], inputs[first]))
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert function(**inputs) == "the original"
    assert len(ran) == 3
    assert not calls


# --- installing ----------------------------------------------------------------------------------


def functions():
    return {(name, model): getattr(module_of(model), name) for name, model in EACH}


def test_uninstall_restores_the_very_functions():
    before = functions()
    with transformers_kernels.install():
        outer = functions()
        assert all(outer[key] is not before[key] for key in before)
        for key, original in before.items():
            assert inspect.signature(outer[key]) == inspect.signature(original)
        with pytest.raises(KeyError, match="inside"), transformers_kernels.install():
            raise KeyError("inside")
        assert functions() == outer
    assert functions() == before
    with pytest.raises(ValueError, match="uninstall was called more often than install"):
        transformers_kernels.uninstall()


def test_a_function_that_was_kept_is_the_original_after_uninstall(torch_only, calls):
    name, model = EACH[0]
    with transformers_kernels.install():
        kept = getattr(module_of(model), name)
    kept(**arguments(name))
    assert not calls


def test_a_function_that_somebody_else_put_there_stays(monkeypatch):
    name, model = EACH[0]
    theirs = functools.wraps(functions()[EACH[0]])(lambda *args, **kwargs: None)
    with monkeypatch.context() as patch:
        with transformers_kernels.install():
            patch.setattr(module_of(model), name, theirs)
        assert functions()[EACH[0]] is theirs
        others = functions()
    # monkeypatch has put our function back; it is the original now.
    assert others.items() - functions().items() == {(EACH[0], theirs)}


def test_every_model_of_transformers_with_such_a_function_is_known():
    package = Path(str(needs.module("transformers").__file__)).parent
    found = set()
    for file in package.glob("models/*/modeling_*.py"):
        defined = re.findall(r"^def (\w+)\(", file.read_text(), re.MULTILINE)
        found |= {(name, file.parent.name) for name in defined if name in MODELS}
    assert found == set(EACH)


# --- versions that we do not know ----------------------------------------------------------------


def with_other_parameters(function):
    parameters = [
        p.replace(default=True) if p.name == "dt_softplus" else p
        for p in inspect.signature(function).parameters.values()
        if p.name != "dt_limit"
    ]
    return with_parameters(parameters)


def in_another_order(function):
    first, second, *others = inspect.signature(function).parameters.values()
    return with_parameters([second, first, *others])


def with_parameters(parameters):
    def other(*args, **kwargs):
        pass

    other.__signature__ = inspect.Signature(parameters)  # pyright: ignore
    return other


@pytest.mark.parametrize(
    ("model", "name", "change", "message"),
    [
        (
            *("zamba2", "mamba2_chunk_scan", with_other_parameters),  # the last to be installed
            r"zamba2\.mamba2_chunk_scan has other parameters: it has dt_softplus=True and "
            r"it lacks dt_softplus=False, dt_limit=\(0\.0, inf\)",
        ),
        (
            *("kimi_linear", "recurrent_kimi_delta_attention", in_another_order),
            r"kimi_linear\.recurrent_kimi_delta_attention has other parameters: they have another "
            "order",
        ),
        ("mamba2", "mamba2_chunk_scan", None, "mamba2 has no mamba2_chunk_scan"),
        ("mamba7", "mamba2_chunk_scan", None, r"there is no module transformers\.models\.mamba7"),
    ],
)
def test_another_version_of_transformers_is_named(model, name, change, message, monkeypatch):
    """Nothing is installed then."""
    with monkeypatch.context() as patch:
        if model == "mamba7":
            patch.setitem(MODELS, name, ("mamba2", model))
        elif change is None:
            patch.delattr(module_of(model), name)
        else:
            module = module_of(model)
            patch.setattr(module, name, change(getattr(module, name)))
        before = {key: getattr(module_of(key[1]), key[0], None) for key in EACH}
        version = r"transformers_kernels knows transformers 5\.22, not \d+\.\d+\.\S*: "
        with pytest.raises(ValueError, match=f"^{version}{message}$"):
            transformers_kernels.install()
        assert {key: getattr(module_of(key[1]), key[0], None) for key in EACH} == before
    with pytest.raises(ValueError, match="more often"):
        transformers_kernels.uninstall()
