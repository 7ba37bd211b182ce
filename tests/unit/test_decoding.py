"""Token by token, in chunks and in parallel a model gives the same logits, under any schedule.

`test_mixers.py` says so of every kind of mixer and ffn.
"""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import needs
from mixerloop.config import preset
from mixerloop.model.decoding import advance, prefill, side_by_side, start
from mixerloop.model.initialization import fresh_model
from mixerloop.schedule import mixer_loop

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
CASES = [
    ("no_loop", "none", torch.float32),
    ("mixer_loop(2)", "mixer", torch.float64),
    ("ffn_loop(2)", "none", torch.float64),
    ("block_loop(2)", "none", torch.float32),
    ("full_loop(2)", "stack", torch.float32),
    ("A3 F A F A2 F", "none", torch.float64),
    ("A F 3x(2x(A F))", "none", torch.float64),
]


def model_of(tiny, schedule="full_loop(2)", pass_residual="none", dtype=torch.float64):
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
    """More tokens than the 64 of a chunk in which the parallel forms compute."""
    return torch.randint(tiny.vocab_size, (2, 70), generator=torch.Generator().manual_seed(0))


def close(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE[one.dtype])


@pytest.mark.parametrize(("schedule", "pass_residual", "dtype"), CASES)
def test_token_by_token_and_in_chunks_equals_the_parallel_forward(
    tiny, tokens, schedule, pass_residual, dtype
):
    model = model_of(tiny, schedule, pass_residual, dtype)
    expected = model(tokens)
    assert expected.std() > 0.1
    for length, chunk_tokens in ((0, 1), (9, 1), (60, 7), (66, 64), (66, 1000)):
        state = start(model, batch=2)
        if length:
            logits, state = prefill(model, tokens[:, :length], state, chunk_tokens=chunk_tokens)
            close(logits, expected[:, length - 1])
        for index in range(length, min(length + 8, 70)):
            logits, state = advance(model, tokens[:, index : index + 1], state)
            close(logits[:, 0], expected[:, index])
            assert state.num_tokens == index + 1


def test_a_state_is_a_value_that_can_be_continued_forked_and_selected(tiny, tokens):
    model = model_of(tiny, pass_residual="stack")
    _, kept = prefill(model, tokens[:, :40], start(model, batch=2))
    first, _ = advance(model, tokens[:, 40:50], kept)
    advance(model, tokens[:, 50:], kept)
    again, _ = advance(model, tokens[:, 40:50], kept)
    assert torch.equal(first, again)
    endings = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])
    for rows, state in (
        ([0, 0, 1, 1], kept.fork(2)),
        ([1, 1, 0], kept.select(torch.tensor([1, 1, 0]))),
        ([0, 1, 1], side_by_side([kept, kept.select(torch.tensor([1]))])),
    ):
        logits, after = advance(model, endings[: len(rows)], state)
        whole = torch.cat([tokens[rows, :40], endings[: len(rows)]], dim=1)
        close(logits, model(whole)[:, -2:])
        assert (after.batch, after.num_tokens) == (len(rows), 42)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_there_is_one_state_per_mixer_occurrence_and_its_size_is_constant(tiny, tokens, dtype):
    model = model_of(tiny, "mixer_loop(2)", dtype=dtype)
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


def test_a_real_size_decodes_to_the_same_logits():
    model = fresh_model(replace(preset("nano"), schedule="mixer_loop(2)"), seed=0)
    tokens = torch.randint(4096, (1, 80), generator=torch.Generator().manual_seed(0))
    expected = model(tokens, positions=torch.arange(60, 80))
    _, state = prefill(model, tokens[:, :60], start(model))
    for index in range(60, 80):
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
    model = model_of(tiny)
    schedule = mixer_loop(tiny.num_layers, 2)
    other = start(model, batch=2, schedule=schedule)
    logits, _ = prefill(model, tokens, other)
    close(logits, model(tokens, schedule=schedule)[:, -1])
    with pytest.raises(ValueError, match="states of different schedules cannot be joined"):
        side_by_side([start(model), other])


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m, s: advance(m, torch.zeros(3, 1, dtype=torch.int64), s),
            "3 sequences, the state 2",
        ),
        (lambda m, s: s.select(torch.tensor([2])), "rows must name some of 2 sequences"),
        (lambda m, s: s.select(torch.tensor([-1])), "rows must name some of 2 sequences"),
        (lambda m, s: s.select(torch.tensor([True])), "rows must be int32 or int64"),
        (lambda m, s: s.fork(0), "num must be at least 1, got 0"),
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


@pytest.mark.parametrize(("d_value", "negative"), [(12, False), (4, True)])
def test_values_of_another_width_and_larger_writes_have_one_meaning(
    tiny, tokens, d_value, negative
):
    """Forward, gradients and token by token agree with the definition in float64."""
    config = tiny.changed(
        d_value=d_value, negative_eigenvalues=negative, schedule="mixer_loop(2)", num_layers=2
    )

    def made(form, dtype):
        model = fresh_model(config, seed=0, form=form).to(dtype)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.data *= 4
        logits = model(tokens)
        logits.square().mean().backward()
        return model, logits.detach()

    defined, expected = made("definition", torch.float64)
    assert expected.std() > 0.1
    for form in ("torch", "native"):
        if form == "native":
            needs.KERNEL.or_skip()
        model, logits = made(form, torch.float32)
        torch.testing.assert_close(logits.double(), expected, rtol=0, atol=3e-4)
        for (name, one), other in zip(model.named_parameters(), defined.parameters(), strict=True):
            assert one.grad is not None
            assert other.grad is not None
            error = (one.grad - other.grad).norm() / other.grad.norm()
            assert error < 1e-4, name
        state = start(model, batch=2)
        for index in range(9):
            one, state = advance(model, tokens[:, index : index + 1], state)
            torch.testing.assert_close(one[:, 0], logits[:, index], rtol=0, atol=3e-4)


@pytest.mark.usefixtures("shapes_unchecked")
def test_wrong_arguments_of_decoding_are_named(tiny, tokens):
    model = model_of(tiny)
    state = start(model, batch=2)
    row = tokens[:, :1]
    for call, message in (
        (lambda: prefill(model, tokens.tolist(), state), "tokens must be a tensor, got list"),
        (lambda: advance(model, row.to_sparse(), state), "tokens must be a dense tensor"),
        (lambda: advance(model, row, None), "state must be a DecodeState, got None"),  # pyright: ignore
        (lambda: prefill(model, tokens, state, chunk_tokens="4"), "chunk_tokens must be int"),  # pyright: ignore
        (lambda: state.select([0]), "rows must be a tensor, got list"),  # pyright: ignore
    ):
        with pytest.raises(TypeError, match=message):
            call()
    for call, message in (
        (lambda: start(model, batch=0), "batch must be at least 1, got 0"),
        (lambda: advance(model, row[0], state), r"tokens must be \[batch, seq\], got \(1,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
