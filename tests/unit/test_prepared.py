"""One object for prepared data: every reader sees the same windows of the same split."""

import shutil

import numpy as np
import pytest

from mixerloop.data.batches import Batches
from mixerloop.data.held_out import HeldOutText, held_out_task
from mixerloop.data.prepared import open_prepared
from mixerloop.data.shards import (
    FORMAT,
    Manifest,
    TokenSplit,
    document_hashes,
    fingerprint,
    token_dtype,
    write_manifest,
    write_shard,
)
from mixerloop.data.tasks.hops import Hops, HopsSettings
from mixerloop.data.windows import Draw, TokenWindows


@pytest.fixture
def text(text_data):
    return text_data


@pytest.fixture
def task(hops_data):
    return hops_data


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


def test_a_split_that_data_does_not_have_is_named(text, task):
    for folder in (text, task):
        with pytest.raises(ValueError, match="unknown split 'test'; known: train, held_out"):
            open_prepared(folder).windows("test", 39)  # pyright: ignore


def test_tokenizer_and_fingerprint_tell_data_apart(text, task):
    tokens, synthetic = open_prepared(text), open_prepared(task)
    tokenizer = tokens.tokenizer()
    assert tokenizer is not None
    assert tokenizer.fingerprint == tokens.vocabulary.tokenizer_sha256
    assert synthetic.tokenizer() is synthetic.vocabulary.tokenizer_sha256 is None
    assert synthetic.task is not None
    assert tokens.task is None
    assert tokens.fingerprint == fingerprint(text) != synthetic.fingerprint


def test_the_manifest_of_hops_keeps_its_bytes(task):
    settings = '"num_nodes": 8,\n    "num_queries": 8,\n    "max_hops": 4,\n    "seed": 0'
    expected = f'{{\n  "format": "mixerloop-hops-1",\n  "settings": {{\n    {settings}\n  }}\n}}\n'
    assert (task / "manifest.json").read_text() == expected


def test_damaged_tokens_are_named(text, tmp_path):
    shutil.copytree(text, tmp_path / "copy")
    assert "no document is in both splits" in open_prepared(tmp_path / "copy").verify()
    (shard, *_) = sorted((tmp_path / "copy").glob("*.tokens"))
    shard.write_bytes(bytes(len(shard.read_bytes())))
    with pytest.raises(ValueError, match="damaged, its sha256 is not the recorded one"):
        open_prepared(tmp_path / "copy").verify()


# --- tiny data by hand ---------------------------------------------------------------------------

DOCUMENTS = {
    "train": [[[1, 5, 6], [1, 7]], [[1]]],
    "held_out": [[[1, 2, 3], [1, 4]], [[1, 8, 9, 2]]],
}


@pytest.fixture
def tiny_split(tmp_path):
    """Two shards of each split; the held-out tokens are 1 2 3, 1 4 and 1 8 9 2."""
    shards = {
        split: tuple(
            write_shard(
                tmp_path,
                f"{split}-{number}",
                documents=[np.array(document) for document in documents],
                hashes=[10 * number + n for n in range(len(documents))],
                text_bytes=10,
                dtype=token_dtype(10),
            )
            for number, documents in enumerate(of_split)
        )
        for split, of_split in DOCUMENTS.items()
    }
    manifest = Manifest(
        format=FORMAT,
        source={},
        tokenizer_sha256="",
        vocab_size=10,
        dtype="<u2",
        skipped={},
        train=shards["train"],
        held_out=shards["held_out"],
    )
    write_manifest(tmp_path, manifest)
    return TokenSplit(tmp_path, "held_out")


def test_a_split_is_one_array_whatever_its_shards(tiny_split):
    whole = [1, 2, 3, 1, 4, 1, 8, 9, 2]
    assert len(tiny_split) == 9
    for start in range(10):
        for stop in range(start, 10):
            assert tiny_split.read(start, stop).tolist() == whole[start:stop]
    for start, stop in ((-1, 2), (3, 2), (0, 10)):
        with pytest.raises(ValueError, match=f"tokens {start} to {stop} of 9 were asked for"):
            tiny_split.read(start, stop)
    assert tiny_split.document_starts().tolist() == [0, 3, 5]
    assert document_hashes(tiny_split.folder, tiny_split.shards).tolist() == [0, 1, 10]
    assert document_hashes(tiny_split.folder, ()).tolist() == []
    assert [(shard.tokens, shard.documents) for shard in tiny_split.shards] == [(5, 2), (4, 1)]


def test_windows_overlap_by_the_token_that_is_a_label_and_an_input(tiny_split):
    windows = TokenWindows(tiny_split, 3)
    inputs, labels = windows.read(np.array([1, 0]))
    assert inputs.tolist() == [[1, 4, 1], [1, 2, 3]]
    assert labels.tolist() == [[4, 1, 8], [2, 3, 1]]
    assert (windows.num_windows, windows.num_with_shorter) == (2, 3)
    assert windows.row(2).tolist() == [8, 9, 2]
    exact = TokenWindows(tiny_split, 4)
    assert (exact.num_windows, exact.num_with_shorter) == (2, 2)
    with pytest.raises(ValueError, match="9 held_out tokens do not fill a window of 9"):
        TokenWindows(tiny_split, 9)


def held_out_by_hand(split):
    windows = TokenWindows(split, 3)
    return HeldOutText(
        context=3,
        num_windows=windows.num_with_shorter,
        num_documents=3,
        num_tokens=8,
        text_bytes=np.array([5.0, 6.0, 7.0]),
        windows=windows,
        starts=split.document_starts(),
    )


def test_each_token_but_the_first_belongs_to_its_document(tiny_split, monkeypatch):
    held_out = held_out_by_hand(tiny_split)
    rows = held_out.read(np.arange(3))
    assert [row.tolist() for row in rows.tokens] == [[1, 2, 3, 1], [1, 4, 1, 8], [8, 9, 2]]
    assert [row.tolist() for row in rows.documents] == [[0, 0, 1], [1, 2, 2], [2, 2]]
    assert held_out.tokens_of_documents().tolist() == [2, 2, 4]
    assert held_out.document_numbers().tolist() == [0, 1, 2]
    assert held_out.only("all") is held_out
    for tokens, sizes in ((65536, [3]), (6, [2, 1]), (1, [1, 1, 1])):
        monkeypatch.setattr("mixerloop.data.held_out.BATCH_TOKENS", tokens)
        assert [len(batch.tokens) for batch in held_out.batches()] == sizes


def test_documents_for_the_test_are_those_that_are_not_for_tuning(tiny_split):
    """Of three documents, the first is for tuning, which leaves too few for an interval."""
    held_out = held_out_by_hand(tiny_split)
    test = held_out.only("test")
    assert (test.num_documents, test.num_tokens, test.num_windows) == (2, 6, 3)
    assert test.document_numbers().tolist() == [1, 2]
    assert test.tokens_of_documents().tolist() == [2, 4]
    assert test.text_bytes is not None
    assert test.text_bytes.tolist() == [6, 7]
    rows = test.read(np.arange(3))
    assert [row.tolist() for row in rows.documents] == [[-1, -1, 0], [0, 1, 1], [1, 1]]
    with pytest.raises(ValueError, match="3 held-out documents leave 1 for tuning"):
        held_out.only("tuning")
    chosen = test.only("all").read(np.array([2, 0]))
    assert [row.tolist() for row in chosen.tokens] == [[8, 9, 2], [1, 2, 3, 1]]


def test_windows_without_a_chosen_document_are_left_out():
    task = Hops(HopsSettings(), "held_out")
    held_out = held_out_task(task)
    tuning = held_out.only("tuning")
    assert tuning.num_documents == 1366
    assert tuning.num_tokens == 1366 * 8
    rows = tuning.read(np.arange(4))
    assert len(rows.tokens) == 2
    scored = [row[row >= 0] for row in rows.documents]
    assert [row.tolist() for row in scored] == [[0] * 8, [1] * 8]
    assert np.flatnonzero(rows.documents[0] >= 0).tolist() == [*range(17, 39, 3)]


def test_the_order_of_windows_under_a_seed_never_changes(tiny_split):
    class Numbered:
        """Ten windows that are their own numbers."""

        num_windows, vocab_size, context = 10, 10, 1

        def read(self, indices):
            return indices[:, None], indices[:, None] + 1

    batches = Batches(windows=Numbered(), seed=3, global_batch=4)
    order = [batches.window_indices(step).tolist() for step in range(5)]
    assert order == [[7, 6, 1, 4], [2, 0, 8, 9], [3, 5, 3, 5], [0, 2, 6, 8], [1, 4, 9, 7]]
    assert batches.read(1).step == 1
    second = Batches(windows=Numbered(), seed=3, global_batch=4, rank=1, num_ranks=2)
    assert second.read(1).inputs[:, 0].tolist() == order[1][2:]
    assert [batch.step for batch in batches.prefetched(start=2, stop=4)] == [2, 3]
