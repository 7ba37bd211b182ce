"""SentencePiece models in `transformers`: the same token ids for every text."""

# ruff: noqa: E402  # where transformers is missing the file ends before it imports it
import importlib
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import needs

needs.package("transformers").or_skip()

from transformers import AutoTokenizer

from mixerloop.data.sentencepiece_tokenizer import SentencePieceTokenizer, train_tokenizer
from mixerloop.evaluation.core.asking import asked, questions
from mixerloop.evaluation.core.bundle import VARIABLE, Bundle
from mixerloop.interop.tokenizer_json import write_tokenizer

PARTS = (
    *(" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u200b", "\ufeff", "_", "\u2581", "--", "="),
    *("\U0001f600", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea"),
    *("1", "23", "4.5", "\u0661\u0662", "a", "the", "Don't", "Hello", " world", "()", "{", "}"),
    *("\u65e5\u672c", "\u8a9e", "\u00e9", "e\u0301", "\u00df", "\ufb01", "\ud55c\uad6d\uc5b4"),
    *("\u041f\u0440\u0438\u0432\u0435\u0442", "\u0645\u0631\u062d\u0628\u0627"),
    *("\u0939\u093f\u0928\u094d\u0926\u0940", "<s>", "</s>", "<unk>", "<0x41>"),
)
REPEATS = (1, 1, 1, 2, 3, 7, 17, 33)


def random_texts(number):
    """Spaces, tabs, line breaks, emoji, digits and scripts, in runs and mixtures."""
    rng = random.Random(0)
    for _ in range(number):
        parts = rng.choices(PARTS, k=rng.randint(1, 12))
        yield "".join(part * rng.choice(REPEATS) for part in parts)


def both(folder):
    """Ours, and the one AutoTokenizer makes of what was written beside it."""
    ours = SentencePieceTokenizer(folder / "tokenizer.model")
    write_tokenizer(folder, ours)
    return ours, AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def published(tmp_path):
    source = Path(os.environ[needs.RELEASED_VARIABLE]) / "tokenizer.model"
    shutil.copyfile(source, tmp_path / "tokenizer.model")
    return both(tmp_path)


def assert_same_ids(tokenizers, texts):
    ours, theirs = tokenizers
    for text in texts:
        assert theirs.encode(text) == ours.encode(text), repr(text)


def test_merges_go_by_score_and_not_by_id(tmp_path):
    words = ["the cat sat on the mat", "a theatre that sits", "  two  spaces    and four"] * 20
    needs.package("google.protobuf").or_skip()
    proto: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    model = proto.ModelProto()
    model.ParseFromString(train_tokenizer(words, vocab_size=320))
    runs_of_spaces = [one for one in model.pieces if set(one.piece) == {"\u2581"}]
    assert len(runs_of_spaces) > 2
    for one in runs_of_spaces:
        one.score = -1e9  # as in the published model: they have low ids, and merge last
    (tmp_path / "tokenizer.model").write_bytes(model.SerializeToString())
    assert_same_ids(both(tmp_path), [*words, *random_texts(300)])


@pytest.mark.data
@needs.RELEASED.mark
def test_the_published_tokenizer_gives_the_same_ids(published):
    assert_same_ids(published, random_texts(10_000))


@pytest.mark.data
@needs.RELEASED.mark
@needs.BUNDLE.mark
def test_the_published_tokenizer_gives_the_same_ids_on_core(published):
    bundle = Bundle(Path(os.environ[VARIABLE]))
    seen = []

    def encode(texts):
        seen.extend(texts)
        return published[0].encode_all(texts)

    for task in bundle.tasks:
        questions(asked(bundle, task, limit=11), range(11), encode=encode, context=1024)
    assert len(seen) >= 468
    assert_same_ids(published, seen)
