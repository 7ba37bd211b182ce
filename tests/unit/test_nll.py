"""The held-out NLL against a plain sum over every token."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mixerloop.data.held_out import held_out_task, held_out_text
from mixerloop.data.prepare import prepare
from mixerloop.data.shards import TokenSplit, tokenizer_of
from mixerloop.data.sources import text_files
from mixerloop.data.splitting import Settings, canonical
from mixerloop.data.tasks.hops import Hops, HopsSettings
from mixerloop.data.windows import NOT_SCORED, TokenWindows
from mixerloop.evaluation.looped_scorer import LoopedScorer
from mixerloop.evaluation.nll import DocumentSums, edges, measure, summarise
from mixerloop.evaluation.nll_result import NllFigures
from mixerloop.model.initialization import fresh_model
from mixerloop.results import Estimate, decode, encode
from small_model import small_config

CONTEXT = 16
TOLERANCE = 1e-4  # nats of a sum over some hundred tokens in float32


def documents(prefix, num):
    return [f"{prefix} tale {n} of the old king, ünd his hat " * (n % 4 + 1) for n in range(num)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("nll")
    for name, num in (("train", 30), ("valid", 9)):
        lines = [json.dumps({"text": text}) + "\n" for text in documents(name, num)]
        (root / f"{name}.jsonl").write_text("".join(lines))
    prepare(
        text_files([root / "train.jsonl"], [root / "valid.jsonl"]),
        root / "data",
        settings=Settings(vocab_size=320),
        given=None,
        workers=1,
        progress=lambda what, done, total: None,
    )
    return root / "data"


@pytest.fixture(scope="module")
def split(folder):
    return TokenSplit(folder, "held_out")


@pytest.fixture(scope="module")
def model(split):
    sizes = small_config(num_layers=2, d_model=16, num_heads=2, d_head=8, d_ffn=24, vocab_size=50)
    vocab = split.manifest.vocab_size
    return fresh_model(
        dataclasses.replace(sizes, vocab_size=vocab, schedule="mixer_loop(2)"), seed=0
    )


@pytest.fixture(scope="module")
def held_out(split, folder):
    return held_out_text(split, tokenizer_of(folder, split.manifest), context=CONTEXT)


def plain_losses(model, split):
    """Of every token but the first, window by window."""
    tokens = torch.from_numpy(split.read(0, len(split)).astype(np.int64))
    losses = []
    for at in range(0, len(tokens) - 1, CONTEXT):
        window = tokens[at : at + CONTEXT + 1]
        with torch.no_grad():
            logits = model(window[None, :-1])[0]
        losses.append(F.cross_entropy(logits.double(), window[1:], reduction="none"))
    return torch.cat(losses).numpy()


def test_every_token_but_the_first_is_scored_once(model, split, held_out):
    sums = measure(LoopedScorer(model), held_out)
    losses = plain_losses(model, split)
    assert sums.tokens.sum() == len(split) - 1 == len(losses) == held_out.num_tokens
    assert sums.nats.sum() == pytest.approx(losses.sum(), abs=TOLERANCE)
    starts = np.append(split.document_starts(), len(split))
    for number, (begin, end) in enumerate(itertools.pairwise(starts)):
        own = losses[max(0, begin - 1) : end - 1]
        assert sums.tokens[number].sum() == len(own)
        assert sums.nats[number].sum() == pytest.approx(own.sum(), abs=TOLERANCE)


def test_positions_are_counted_within_the_window_in_octaves(model, split, held_out):
    assert edges(16).tolist() == [0, 1, 2, 4, 8, 16]
    assert edges(1).tolist() == [0, 1]
    assert edges(20).tolist() == [0, 1, 2, 4, 8, 16, 20]
    found = summarise(measure(LoopedScorer(model), held_out), held_out)
    losses = plain_losses(model, split)
    places = np.arange(len(losses)) % CONTEXT
    assert [(one.first, one.last) for one in found.by_position][-1] == (8, 15)
    for one in found.by_position:
        here = (places >= one.first) & (places <= one.last)
        assert one.nll.value == pytest.approx(losses[here].mean(), abs=TOLERANCE)
        assert isinstance(one.nll, Estimate)
        assert one.nll.lower <= one.nll.value <= one.nll.upper


def test_bits_per_byte_are_those_of_the_text(model, split, held_out):
    found = summarise(measure(LoopedScorer(model), held_out), held_out)
    assert held_out.text_bytes is not None
    total = sum(shard.text_bytes for shard in split.shards)
    assert held_out.text_bytes.sum() == pytest.approx(total)
    assert held_out.text_bytes.tolist() == pytest.approx(
        [len(canonical(text).encode()) for text in documents("valid", 9)]
    )
    bits = plain_losses(model, split).sum() / np.log(2)
    assert isinstance(found.bits_per_byte, Estimate)
    assert found.bits_per_byte.value == pytest.approx(bits / held_out.text_bytes.sum(), rel=1e-5)
    assert found.bits_per_byte.lower < found.bits_per_byte.value < found.bits_per_byte.upper


def test_whole_windows_are_the_ones_training_measures(model, split, held_out):
    windows = TokenWindows(split, CONTEXT)
    inputs, labels = windows.read(np.arange(windows.num_windows))
    with torch.no_grad():
        logits = model(torch.from_numpy(inputs))
    summed = F.cross_entropy(
        logits.double().flatten(0, 1), torch.from_numpy(labels).flatten(), reduction="sum"
    )
    left = plain_losses(model, split)[windows.num_windows * CONTEXT :].sum()
    nats = measure(LoopedScorer(model), held_out).nats.sum()
    assert nats == pytest.approx(float(summed) + left, abs=TOLERANCE)


def test_of_hops_the_answers_are_scored_by_sequence(monkeypatch):
    hops = Hops(HopsSettings(), "held_out")
    monkeypatch.setattr(hops, "num_windows", 50)
    sizes = small_config(num_layers=1, d_model=16, num_heads=2, d_head=8, d_ffn=24, vocab_size=50)
    model = fresh_model(dataclasses.replace(sizes, vocab_size=12, schedule="mixer_loop(2)"), seed=0)
    held_out = held_out_task(hops)
    sums = measure(LoopedScorer(model), held_out)
    inputs, labels = hops.read(np.arange(50))
    with torch.no_grad():
        logits = model(torch.from_numpy(inputs)).double()
    expected = F.cross_entropy(
        logits.transpose(1, 2), torch.from_numpy(labels), ignore_index=NOT_SCORED, reduction="none"
    )
    np.testing.assert_allclose(sums.nats.sum(axis=1), expected.sum(1), atol=TOLERANCE)
    assert sums.tokens.sum() == held_out.num_tokens == 50 * 8
    assert summarise(sums, held_out).bits_per_byte is None


def test_bytes_are_those_of_the_text_though_the_tokenizer_wrote_others(folder, split, monkeypatch):
    tokenizer = tokenizer_of(folder, split.manifest)
    monkeypatch.setattr(tokenizer, "decode", lambda ids: "x" * len(ids))
    held_out = held_out_text(split, tokenizer, context=CONTEXT)
    assert held_out.text_bytes is not None
    total = sum(shard.text_bytes for shard in split.shards)
    assert held_out.text_bytes.sum() == pytest.approx(total)


def test_a_single_document_gives_figures_without_intervals(held_out):
    bins = len(edges(CONTEXT)) - 1
    sums = DocumentSums(np.full((1, bins), 6.0), np.full((1, bins), 2), np.array([3]))
    one = dataclasses.replace(held_out, num_documents=1, text_bytes=np.array([20.0]))
    figures = summarise(sums, one)
    assert encode(figures.nll) == {"value": 3.0, "over": "documents", "lower": None, "upper": None}
    assert all(place.nll == figures.nll for place in figures.by_position)
    assert len(figures.by_position) == bins
    assert decode(NllFigures, encode(figures)) == figures


def test_no_token_or_no_context_is_refused(folder, split, monkeypatch):
    tokenizer = tokenizer_of(folder, split.manifest)
    with pytest.raises(ValueError, match="context must be at least 1, got 0"):
        held_out_text(split, tokenizer, context=0)
    monkeypatch.setattr(type(split), "__len__", lambda self: 1)
    with pytest.raises(ValueError, match="1 held-out tokens, and none is predicted from another"):
        held_out_text(split, tokenizer, context=CONTEXT)
