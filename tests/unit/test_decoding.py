from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import needs
from mixerloop.config import preset
from mixerloop.model.decoding import advance, prefill, start
from mixerloop.model.initialization import fresh_model
from mixerloop.schedule import LOOPS, mixer_loop

SCHEDULES = [
    *((name, "none") for name in LOOPS),
    ("A3 F A F A2 F", "none"),
    ("A F 3x(2x(A F))", "none"),
]
SCHEDULES += [("mixer_loop", "mixer"), ("full_loop", "stack")]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


@pytest.fixture(params=TOLERANCE, ids=str)
def dtype(request):
    return request.param


@pytest.fixture(params=SCHEDULES, ids="-".join)
def model(request, tiny, dtype):
    schedule, pass_residual = request.param
    config = tiny.changed(schedule=schedule, pass_residual=pass_residual)
    model = fresh_model(config, seed=0).to(dtype)
    for parameter in model.parameters():  # fresh weights leave the residual almost as it came
        if parameter.ndim == 2:
            parameter.data *= 2
    for rule in model.pass_rules:
        rule.get_parameter("weight").data.fill_(0.1)
    return model.requires_grad_(False)


@pytest.fixture
def tokens(tiny):
    return torch.randint(tiny.vocab_size, (2, 150), generator=torch.Generator().manual_seed(0))


def close(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE[one.dtype])


def test_token_by_token_equals_the_parallel_forward(model, tokens):
    expected = model(tokens)
    assert expected.std() > 0.1
    state = start(model, batch=2)
    for index in range(tokens.shape[1]):
        logits, state = advance(model, tokens[:, index : index + 1], state)
        close(logits[:, 0], expected[:, index])
    assert state.num_tokens == 150


@pytest.mark.parametrize("chunk_tokens", [1, 7, 64, 1000])
def test_prefill_in_chunks_equals_the_parallel_forward(model, tokens, chunk_tokens):
    logits, state = prefill(model, tokens, start(model, batch=2), chunk_tokens=chunk_tokens)
    close(logits, model(tokens)[:, -1])
    following = torch.tensor([[1, 2], [3, 4]])
    logits, _ = advance(model, following, state)
    close(logits, model(torch.cat([tokens, following], dim=1))[:, -2:])


def test_a_kept_state_can_be_rolled_back_to(model, tokens):
    _, kept = prefill(model, tokens[:, :80], start(model, batch=2))
    first, _ = advance(model, tokens[:, 80:100], kept)
    _, _ = advance(model, tokens[:, 100:150], kept)
    again, _ = advance(model, tokens[:, 80:100], kept)
    assert torch.equal(first, again)
    close(again, model(tokens[:, :100])[:, 80:])


def test_forks_go_their_own_ways(model, tokens):
    _, state = prefill(model, tokens[:, :80], start(model, batch=2))
    endings = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])
    logits, _ = advance(model, endings, state.fork(2))
    whole = torch.cat([tokens[:, :80].repeat_interleave(2, dim=0), endings], dim=1)
    close(logits, model(whole)[:, -2:])


def test_rows_can_be_selected_in_any_order(model, tokens):
    _, state = prefill(model, tokens[:, :80], start(model, batch=2))
    logits, _ = advance(model, torch.tensor([[1], [1], [1]]), state.select(torch.tensor([1, 1, 0])))
    rows = torch.cat([tokens[[1, 1, 0], :80], torch.ones(3, 1, dtype=torch.int64)], dim=1)
    close(logits[:, -1], model(rows)[:, -1])


def test_there_is_one_state_per_mixer_occurrence_and_its_size_is_constant(model, tokens):
    state = start(model, batch=2)
    assert {o for o, held in state.states.items() if held} == {
        o for o in model.schedule if o.sublayer == "mixer"
    }
    sizes = {state.nbytes()}
    for piece in tokens.split(50, dim=1):
        _, state = advance(model, piece, state)
        sizes.add(state.nbytes())
        held = {t.untyped_storage().nbytes() for s in state.states.values() for t in s}
        wanted = {t.nbytes for s in state.states.values() for t in s}
        assert held == wanted, "a state keeps alive the tensor it was cut from"
    assert len(sizes) == 1


@pytest.mark.parametrize("name", LOOPS)
def test_a_real_size_decodes_to_the_same_logits(name):
    model = fresh_model(replace(preset("nano"), schedule=name), seed=0)
    tokens = torch.randint(4096, (1, 100), generator=torch.Generator().manual_seed(0))
    expected = model(tokens, positions=torch.arange(60, 100))
    _, state = prefill(model, tokens[:, :60], start(model))
    for index in range(60, 100):
        logits, state = advance(model, tokens[:, index : index + 1], state)
        close(logits[:, 0], expected[:, index - 60])


def test_decoding_keeps_no_graph(tiny):
    model = fresh_model(tiny, seed=0)
    logits, state = prefill(model, torch.tensor([[1, 2, 3]]), start(model))
    logits, state = advance(model, logits.argmax(-1)[:, None], state)
    held = [tensor for mixer_state in state.states.values() for tensor in mixer_state]
    assert not any(tensor.requires_grad for tensor in [logits, *held])


class CountWork(TorchDispatchMode):
    """Every operation and the number of elements it returns."""

    def __init__(self):
        super().__init__()
        self.work = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        outputs = result if isinstance(result, tuple | list) else [result]
        self.work.append((str(func), sum(o.numel() for o in outputs if torch.is_tensor(o))))
        return result


def test_the_work_for_a_token_does_not_grow_with_the_prefix(tiny):
    model = fresh_model(tiny, seed=0).requires_grad_(False)
    work = []
    for prefix in (1, 64, 1000):
        _, state = prefill(model, torch.zeros(1, prefix, dtype=torch.int64), start(model))
        with CountWork() as count:
            advance(model, torch.zeros(1, 1, dtype=torch.int64), state)
        work.append(count.work)
    assert work[0] == work[1] == work[2]


def test_decoding_under_another_schedule_is_asked_for(tiny, tokens):
    model = fresh_model(tiny, seed=0).requires_grad_(False)
    schedule = mixer_loop(tiny.num_layers, 2)
    logits, _ = prefill(model, tokens, start(model, batch=2, schedule=schedule))
    torch.testing.assert_close(logits, model(tokens, schedule=schedule)[:, -1], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m, s: advance(m, torch.zeros(3, 1, dtype=torch.int64), s),
            "3 sequences, the state 2",
        ),
        (lambda m, s: s.select(torch.tensor([2])), "rows must name some of 2 sequences"),
        (
            lambda m, s: s.select(torch.tensor([True, False])),
            "rows must be a list of int32 or int64",
        ),
        (lambda m, s: s.fork(0), "rows must name some of 2 sequences"),
        (
            lambda m, s: prefill(m, torch.zeros(2, 3, dtype=torch.int64), s, chunk_tokens=0),
            "chunk_tokens must be at least 1",
        ),
        (lambda m, s: prefill(m, torch.zeros(2, 0, dtype=torch.int64), s), "seq > 0"),
    ],
)
def test_what_does_not_fit_the_state_is_refused(tiny, call, message):
    model = fresh_model(tiny, seed=0)
    with pytest.raises(ValueError, match=message):
        call(model, start(model, batch=2))


@pytest.mark.parametrize("form", ["definition", "torch", "native"])
@pytest.mark.parametrize(("d_value", "negative"), [(12, False), (None, True), (4, True)])
def test_values_of_another_width_and_larger_writes_have_one_meaning(
    tiny, tokens, form, d_value, negative
):
    """Forward, gradients and token by token agree with the definition in float64."""
    if form == "native":
        needs.KERNEL.or_skip()
    config = tiny.changed(d_value=d_value, negative_eigenvalues=negative)

    def made(form, dtype):
        model = fresh_model(config, seed=0, form=form).to(dtype)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.data *= 4
        return model

    defined, model = made("definition", torch.float64), made(form, torch.float32)
    expected, got = defined(tokens), model(tokens)
    assert expected.std() > 0.1
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=3e-4)
    for logits in (expected, got):
        logits.square().mean().backward()
    for (name, one), other in zip(model.named_parameters(), defined.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        error = (one.grad - other.grad).norm() / other.grad.norm()
        assert error < 1e-4, name
    state = start(model, batch=2)
    with torch.no_grad():
        for index in range(20):
            logits, state = advance(model, tokens[:, index : index + 1], state)
            torch.testing.assert_close(logits[:, 0], got[:, index], rtol=0, atol=3e-4)
