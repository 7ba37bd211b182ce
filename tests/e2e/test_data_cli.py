"""`mixerloop data` as a user runs it, and as a machine that is switched off runs it."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import needs
from command_line import COMMAND, mixerloop, refused
from mixerloop import paper
from mixerloop.data.sentencepiece_tokenizer import train_tokenizer
from mixerloop.data.sources import standard_library

KILLS = 10


def data(*arguments, code=0):
    return mixerloop("data", *arguments, code=code)


def is_finished(folder):
    return (folder / "manifest.json").exists() and not (folder / "preparing.json").exists()


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    texts = [next(file.documents()) for file in standard_library().files[:40]]
    path = tmp_path_factory.mktemp("tokenizer") / "python.model"
    path.write_bytes(train_tokenizer(texts, vocab_size=600))
    return path


@pytest.fixture(scope="module")
def stdlib(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("data") / "stdlib"
    data("prepare", "stdlib", "--out", folder, "--tokenizer", tokenizer)
    return folder


def test_the_standard_library_is_prepared_verified_and_shown(stdlib):
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


@pytest.mark.slow
def test_killed_at_ten_random_moments_and_continued_the_bytes_are_the_same(
    stdlib, tokenizer, tmp_path
):
    moments = random.Random(0)
    expected, killed, folder = contents(stdlib), 0, tmp_path / "again-0"
    partly_done = 0
    while killed < KILLS:
        if is_finished(folder):
            assert contents(folder) == expected
            folder = tmp_path / f"again-{killed}"
        process = subprocess.Popen(
            [*COMMAND, "data", "prepare", "stdlib", "--out", folder, "--tokenizer", tokenizer],
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        if killed % 2:  # wherever it is by then, and in the middle of its work
            time.sleep(moments.uniform(0.4, 2.0))
        else:
            while process.poll() is None and not list(folder.glob("*.tokens")):
                time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        partly_done += 0 < len(list(folder.glob("*.tokens"))) < len(expected) // 2
    assert partly_done > 0, "no kill fell into the work; the moments need changing"
    if not is_finished(folder):
        data("prepare", "stdlib", "--out", folder, "--tokenizer", tokenizer)
    assert contents(folder) == expected


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


def test_bad_input_gets_one_line(tmp_path, tokenizer, stdlib):
    out, small = ["--out", tmp_path / "out"], ["--vocab-size", 300]
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    for arguments, message in [
        (["prepare", "text", *out], "name the files or folders"),
        (["prepare", "text", tmp_path / "gone", *out], "there is no such file or folder"),
        (["prepare", "stdlib", *out, "--workers", 0], "workers must be from 1 to 1024"),
        (["prepare", "stdlib", *out, "--vocab-size", 3], "vocab size must be from 260"),
        (["prepare", "stdlib", *out, "--held-out-share", 2], "held-out share must be from 0"),
        (["prepare", "stdlib", "--out", stdlib], "already prepared"),
        (["prepare", "climbmix", "--out", stdlib], "already prepared"),
        (["prepare", "climbmix", *out, "--tokenizer", "gone"], "gone: there is no such tokenizer"),
        (
            ["prepare", "stdlib", *out, "--tokenizer", tokenizer, "--vocab-size", 300],
            "leave vocab_size out",
        ),
        (
            ["prepare", "text", stdlib, *out, "--held-out", stdlib, "--held-out-share", 0.1],
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
    named = refused("data", *bad, after=["tokenising"])
    assert "bad.txt: not UTF-8 at byte 0" in named


@pytest.mark.parametrize("as_in_the_paper", [True, False])
def test_climbmix_says_what_of_it_is_the_papers(as_in_the_paper, tmp_path, monkeypatch):
    """A small parquet folder, told that its own figures are the paper's."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for shard in ("shard_00000.parquet", "shard_06542.parquet"):
        texts = [f"{shard} has the document {number}" for number in range(40)]
        pq.write_table(pa.table({"text": texts}), tmp_path / shard)
    words = ("prepare", "climbmix", "--shards", "0", "--from", tmp_path, "--vocab-size", 300)
    first = json.loads(data(*words, "--out", tmp_path / "first", "--json").stdout)
    assert first["as_in_the_paper"] == {"tokenizer": False, "train_tokens": False}
    if as_in_the_paper:
        monkeypatch.setattr(paper, "TRAIN_TOKENS", first["train"]["tokens"])
        monkeypatch.setattr(paper, "TOKENIZER_SHA256", first["tokenizer_sha256"])
    said = data(*words, "--out", tmp_path / "second").stdout
    assert ("train tokens: as in the paper" in said) == as_in_the_paper
    assert ("train tokens: not the paper's 10,690,433,521" in said) != as_in_the_paper
    assert ("tokenizer: as in the paper" in said) == as_in_the_paper


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
