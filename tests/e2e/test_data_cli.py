"""`mixerloop data` as a user runs it."""

import json
import os
import sys
from pathlib import Path

import pytest

import needs
from command_line import mixerloop, refused
from mixerloop import paper


def data(*arguments, code=0):
    return mixerloop("data", *arguments, code=code)


@pytest.mark.slow
def test_the_standard_library_is_prepared_verified_and_shown(tmp_path):
    stdlib = tmp_path / "stdlib"
    data("prepare", "stdlib", "--out", stdlib, "--vocab-size", 600)
    verified = json.loads(data("verify", stdlib, "--json").stdout)
    assert verified["verified"] is True
    assert verified["train"]["tokens"] > 3_000_000
    assert verified["held_out"]["documents"] > 10
    shown = data("show", stdlib, "--samples", 1).stdout
    assert "bytes per token" in shown
    assert "--- held_out" in shown
    source = json.loads((stdlib / "manifest.json").read_text())["source"]
    assert source["python"] == sys.version.split()[0]
    assert len(source["content_sha256"]) == 64


def test_text_files_are_prepared_with_a_tokenizer_of_their_own(tmp_path):
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text(f"once upon a time there were {number} foxes\n" * 9)
    options = ["--vocab-size", 300, "--held-out-share", 0.2]
    prepared = json.loads(
        data("prepare", "text", tmp_path, *options, "--out", tmp_path / "out", "--json").stdout
    )
    assert prepared["train"]["documents"] + prepared["held_out"]["documents"] == 20
    assert prepared["vocab_size"] <= 300
    assert "foxes" in data("show", tmp_path / "out").stdout


def test_hops_are_written_down_and_shown(tmp_path):
    data("prepare", "hops", "--out", tmp_path / "hops", "--num-nodes", 7)
    assert "|" in data("show", tmp_path / "hops", "--samples", 1).stdout
    assert "sound" in data("verify", tmp_path / "hops").stdout
    shown = json.loads(data("show", tmp_path / "hops", "--json").stdout)
    assert shown["num_nodes"] == 7
    assert len(shown["samples"]["train"]) == 2


def test_bad_input_gets_one_line(tmp_path, text_data):
    tokenizer = text_data / "tokenizer.model"
    out, small = ["--out", tmp_path / "out"], ["--vocab-size", 300]
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    for arguments, message in [
        (["prepare", "text", *out], "name the files or folders"),
        (["prepare", "text", tmp_path / "gone", *out], "there is no such file or folder"),
        (["prepare", "stdlib", *out, "--workers", 0], "workers must be from 1 to 1024"),
        (["prepare", "stdlib", *out, "--vocab-size", 3], "vocab size must be from 260"),
        (["prepare", "stdlib", *out, "--held-out-share", 2], "held-out share must be from 0"),
        (["prepare", "stdlib", "--out", text_data], "already prepared"),
        (["prepare", "climbmix", "--out", text_data], "already prepared"),
        (["prepare", "climbmix", *out, "--tokenizer", "gone"], "gone: there is no such file"),
        (
            ["prepare", "stdlib", *out, "--tokenizer", tokenizer, "--vocab-size", 300],
            "leave vocab_size out",
        ),
        (
            ["prepare", "text", out[1], *out, "--held-out", out[1], "--held-out-share", 0.1],
            "not both",
        ),
        (["prepare", "climbmix", "--from", tmp_path, *out], "climbmix needs a tokenizer"),
        (["prepare", "climbmix", *small, "--shards", "9-0", *out], "--shards '9-0'"),
        (
            ["prepare", "climbmix", *small, "--shards", "0", "--from", tmp_path, *out],
            "shard_00000.parquet",
        ),
        (["prepare", "hops", *out, "--num-nodes", 1], "hops.num_nodes must be from 2"),
        (["verify", tmp_path], "prepare it with mixerloop data prepare"),
        (["show", tmp_path / "gone"], "prepare it with mixerloop data prepare"),
    ]:
        assert message in refused("data", *arguments)
        assert not (tmp_path / "out").exists()
    bad = ["prepare", "text", tmp_path / "bad.txt", *out, "--tokenizer", tokenizer]
    assert "bad.txt: not UTF-8 at byte 0" in refused("data", *bad)
    assert not (tmp_path / "out").exists()


def test_climbmix_says_what_of_it_is_the_papers(tmp_path, monkeypatch):
    """A small parquet folder, told that its own figures are the paper's."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for shard in ("shard_00000.parquet", "shard_06542.parquet"):
        texts = [f"{shard} has the document {number}" for number in range(40)]
        pq.write_table(pa.table({"text": texts}), tmp_path / shard)
    words = ("prepare", "climbmix", "--shards", "0", "--from", tmp_path, "--vocab-size", 300)
    first = json.loads(data(*words, "--out", tmp_path / "first", "--json").stdout)
    assert first["as_in_the_paper"] == {"tokenizer": False, "train_tokens": False}
    said = data(*words, "--out", tmp_path / "second").stdout
    assert "train tokens: not the paper's 10,690,433,521" in said
    assert "tokenizer: as in the paper" not in said
    monkeypatch.setattr(paper, "TRAIN_TOKENS", first["train"]["tokens"])
    monkeypatch.setattr(paper, "TOKENIZER_SHA256", first["tokenizer_sha256"])
    said = data(*words, "--out", tmp_path / "third").stdout
    assert "train tokens: as in the paper" in said
    assert "tokenizer: as in the paper" in said


@pytest.mark.slow
@pytest.mark.data
@needs.CORPUS.mark
@pytest.mark.parametrize(
    ("name", "train", "held_out"), [("tinystories", 12_223, 976), ("fairytales", 1_810, 81)]
)
def test_real_corpora_go_through_unchanged(tmp_path, name, train, held_out):
    folder = Path(os.environ[needs.CORPUS_VARIABLE])
    files = [folder / f"{name}_{part}.jsonl.xz" for part in ("train", "valid")]
    prepared = json.loads(
        data(
            *("prepare", "text", files[0], "--held-out", files[1]),
            *("--out", tmp_path / "out", "--json"),
        ).stdout
    )
    assert prepared["train"]["documents"] == train
    assert prepared["held_out"]["documents"] == held_out
    assert prepared["skipped"] == {"empty": 0, "held_out_also_in_training": 0}
    data("verify", tmp_path / "out")
