"""One object for prepared data: every reader sees the same windows of the same split."""

import json

import numpy as np
import pytest

from mixerloop.data.corpora import prepare_hops, prepare_text
from mixerloop.data.prepared import open_prepared
from mixerloop.data.shards import TokenSplit, fingerprint
from mixerloop.data.windows import Draw


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    root = tmp_path_factory.mktemp("prepared")
    lines = [json.dumps({"text": f"tale {n} of a fox and {n} hens. " * 9}) for n in range(60)]
    (root / "tales.jsonl").write_text("\n".join(lines))
    prepare_text(
        [root / "tales.jsonl"], root / "data", held_out_share=0.3, vocab_size=300, workers=1
    )
    return root / "data"


@pytest.fixture
def task(tmp_path):
    prepare_hops(tmp_path / "hops")
    return tmp_path / "hops"


@pytest.mark.parametrize("extra", [0, 1, 2, 15])
def test_training_nll_and_transport_read_one_cut_of_the_text(text, extra):
    prepared, tokens = open_prepared(text), TokenSplit(text, "held_out")
    context = next(c for c in range(16, 64) if (len(tokens) - extra) % c == 0 or c == 63)
    whole = tokens.read(0, len(tokens)).astype(np.int64)
    windows = prepared.windows("held_out", context)
    inputs, labels = windows.read(np.arange(windows.num_windows))
    rows = [row for batch in prepared.held_out(context).batches() for row in batch.tokens]
    for number, (row, label) in enumerate(zip(inputs, labels, strict=True)):
        start = number * context
        assert np.array_equal(row, whole[start : start + context])
        assert np.array_equal(label, whole[start + 1 : start + context + 1])
        assert np.array_equal(rows[number], whole[start : start + context + 1])
    assert np.array_equal(np.concatenate([row[1:] for row in rows]), whole[1:])
    assert len(rows) - windows.num_windows in (0, 1)
    num = len(tokens) // context
    drawn = prepared.draw(Draw(num=num, num_positions=4, seed=0), context=context)
    cut = {row.tobytes() for row in whole[: num * context].reshape(num, context)}
    assert {row.tobytes() for row in drawn.tokens} == cut


def test_draws_share_no_window_and_end_with_the_windows(text):
    prepared = open_prepared(text)
    num = len(TokenSplit(text, "held_out")) // 32 // 2
    first, second = (
        prepared.draw(Draw(num=num, num_positions=4, seed=3, number=number), context=32)
        for number in (0, 1)
    )
    rows = [{row.tobytes() for row in drawn.tokens} for drawn in (first, second)]
    assert not rows[0] & rows[1]
    with pytest.raises(ValueError, match=r"context of 32: there are \d+, and draw 2 of"):
        prepared.draw(Draw(num=num, num_positions=4, seed=3, number=2), context=32)


def test_a_text_asks_for_a_context_and_a_task_has_one(text, task):
    for method in (lambda data: data.windows("train", None), lambda data: data.held_out(None)):
        with pytest.raises(ValueError, match="tokens need a context to be cut into windows of"):
            method(open_prepared(text))
        assert method(open_prepared(task)).context == open_prepared(task).context == 39
    for method in (lambda data: data.windows("train", 40), lambda data: data.held_out(40)):
        with pytest.raises(ValueError, match="its sequences have 39 tokens, not 40"):
            method(open_prepared(task))


def test_tokenizer_and_fingerprint_tell_data_apart(text, task):
    tokens, synthetic = open_prepared(text), open_prepared(task)
    tokenizer = tokens.tokenizer()
    assert tokenizer is not None
    assert tokenizer.fingerprint == tokens.tokenizer_sha256
    assert synthetic.tokenizer() is synthetic.tokenizer_sha256 is None
    assert synthetic.task is not None
    assert tokens.task is None
    assert tokens.fingerprint == fingerprint(text) != synthetic.fingerprint


def test_the_manifest_of_hops_keeps_its_bytes(task):
    settings = '"num_nodes": 8,\n    "num_queries": 8,\n    "max_hops": 4,\n    "seed": 0'
    expected = f'{{\n  "format": "mixerloop-hops-1",\n  "settings": {{\n    {settings}\n  }}\n}}\n'
    assert (task / "manifest.json").read_text() == expected


def test_damaged_tokens_are_named(text, tmp_path):
    import shutil

    shutil.copytree(text, tmp_path / "copy")
    assert "no document is in both splits" in open_prepared(tmp_path / "copy").verify()
    (shard, *_) = sorted((tmp_path / "copy").glob("*.tokens"))
    shard.write_bytes(bytes(len(shard.read_bytes())))
    with pytest.raises(ValueError, match="damaged, its sha256 is not the recorded one"):
        open_prepared(tmp_path / "copy").verify()
