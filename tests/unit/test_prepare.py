import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixerloop import files
from mixerloop.data import prepare as preparing
from mixerloop.data import shards
from mixerloop.data.prepare import _alone_in, _sample, prepare
from mixerloop.data.sentencepiece_tokenizer import train_tokenizer
from mixerloop.data.shards import TokenSplit, read_manifest, token_dtype, verify, write_shard
from mixerloop.data.sources import Source, SourceFile, text_files
from mixerloop.data.splitting import WORD_MARK, Settings, canonical, hash_of
from mixerloop.data.tokenizer_files import open_tokenizer
from mixerloop.files import file_sha256, write_file

SMALL_PIECE = 2**14
WORDS = ["a", "tale", "of", "the", "old", "king", "who", "went", "far", "over", "hill", "and"]


def story(seed, words=60):
    generator = random.Random(seed)
    return " ".join(generator.choice(WORDS) for _ in range(words)) + f" {seed}."


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    path.write_bytes(train_tokenizer((story(n) for n in range(200)), vocab_size=400))
    return path


@pytest.fixture
def small_pieces(monkeypatch):
    """Shards are cut as they are from larger text, after 16 thousand characters."""
    monkeypatch.setattr(preparing, "SMALLEST_PIECE", SMALL_PIECE)


def write_jsonl(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def run(source, folder, tokenizer_path, *, workers=1, **settings):
    if not any(file.split for file in source.files):
        settings.setdefault("held_out_share", 0.0)
    if tokenizer_path is None:
        settings.setdefault("vocab_size", 300)
    return prepare(
        source,
        folder,
        settings=Settings(**settings),
        given=None if tokenizer_path is None else open_tokenizer(tokenizer_path),
        workers=workers,
        progress=lambda what, done, total: None,
    )


def texts_of(folder, split):
    """Every document of a split, decoded."""
    tokens, tokenizer = TokenSplit(folder, split), open_tokenizer(folder)
    starts = tokens.document_starts().tolist()
    ends = [*starts[1:], len(tokens)]
    return [tokenizer.decode(tokens.read(a, b).tolist()) for a, b in zip(starts, ends, strict=True)]


def test_every_document_comes_back_stripped_and_in_order(tmp_path, tokenizer_path):
    texts = [story(n) for n in range(50)]
    odd = ["  spaces kept   inside \n\n\tand tabs ", "Ünïcödé 漢字 ☃ \u200b", "x" * 5000]
    path = write_jsonl(tmp_path / "a.jsonl", [*texts[:25], "", " \n ", *odd, *texts[25:]])
    manifest = run(text_files([path], []), tmp_path / "out", tokenizer_path, held_out_share=0.0)
    expected = [*texts[:25], *(text.strip() for text in odd), *texts[25:]]
    assert texts_of(tmp_path / "out", "train") == expected
    assert manifest.skipped == {"empty": 2, "held_out_also_in_training": 0}
    assert sum(s.text_bytes for s in manifest.train) == sum(len(t.encode()) for t in expected)
    assert manifest.held_out == ()
    verify(tmp_path / "out")


def test_a_document_longer_than_a_shard_is_kept_whole(tmp_path, tokenizer_path, small_pieces):
    long = story(1, words=6_000)
    assert len(long) > 1.5 * SMALL_PIECE
    path = write_jsonl(tmp_path / "a.jsonl", [story(2), long, story(3)])
    manifest = run(text_files([path], []), tmp_path / "out", tokenizer_path, held_out_share=0.0)
    assert [shard.documents for shard in manifest.train] == [1, 1, 1]
    assert texts_of(tmp_path / "out", "train") == [story(2), long, story(3)]


def test_duplicated_documents_never_cross_the_split(tmp_path, tokenizer_path):
    texts = [story(n % 100) for n in range(400)]
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    other = write_jsonl(tmp_path / "b.jsonl", [f"  {text}\n" for text in texts])
    run(text_files([path, other], []), tmp_path / "out", tokenizer_path, held_out_share=0.3)
    train, held_out = (set(texts_of(tmp_path / "out", s)) for s in ("train", "held_out"))
    assert train | held_out == set(texts)
    assert not train & held_out
    assert 15 <= len(held_out) <= 45
    verify(tmp_path / "out")


def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path, tokenizer_path, small_pieces):
    files = [write_jsonl(tmp_path / f"{n}.jsonl", [story(n, 2_500)] * 2) for n in range(4)]
    contents = []
    for workers in (1, 3):
        folder = tmp_path / f"out-{workers}"
        run(text_files(files, []), folder, tokenizer_path, workers=workers, held_out_share=0.5)
        contents.append({p.name: p.read_bytes() for p in folder.iterdir()})
    assert contents[0] == contents[1]
    assert len(contents[0]) > 8


@given(st.text(st.characters(exclude_characters=WORD_MARK, exclude_categories=["Cs"])))
def test_any_text_but_the_word_mark_comes_back_as_it_was(tokenizer_path, text):
    tokenizer = open_tokenizer(tokenizer_path)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", ["<s> </s> <unk>", "<0x0A>", "a\0b", " a  b\t\r\n", "\n\n"])
def test_text_that_looks_like_a_token_is_still_text(tokenizer_path, text):
    tokenizer = open_tokenizer(tokenizer_path)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_word_mark_is_read_as_a_space_and_hashed_as_one():
    assert canonical(f" a{WORD_MARK}b{WORD_MARK}") == "a b"


def test_a_vocabulary_too_small_for_the_text_says_so(tmp_path):
    text = "".join(chr(0x4E00 + n) for n in range(2000))
    path = write_jsonl(tmp_path / "a.jsonl", [text, text + "x"])
    with pytest.raises(ValueError, match="a vocabulary of 300 is too small for the characters"):
        run(text_files([path], []), tmp_path / "out", None, held_out_share=0.0)


def test_small_files_leave_their_share_of_the_sample_to_large_ones(tmp_path):
    small = [write_jsonl(tmp_path / f"{n}.jsonl", ["tiny"]) for n in range(50)]
    large = write_jsonl(tmp_path / "large.jsonl", [story(n, 100_000) for n in range(4)])
    source = text_files([large, *small], [])
    sampled = sum(map(len, _sample(source, Settings(held_out_share=0.0))))
    assert sampled == 50 * 4 + sum(len(story(n, 100_000)) for n in range(4))


def test_a_tokenizer_is_trained_on_training_blocks_only(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(story(n) for n in range(30)))
    blocks = Settings(block_characters=200, held_out_below=2**63)
    source = text_files([tmp_path / "a.txt"], [])
    sampled = set(map(canonical, _sample(source, blocks)))
    everything = Settings(block_characters=200, held_out_below=0)
    assert 0 < len(sampled) < len(list(_sample(source, everything)))
    assert all(hash_of(text) >= 2**63 for text in sampled)


def test_held_out_files_that_repeat_the_training_files_are_refused(tmp_path, tokenizer_path):
    train, again = (write_jsonl(tmp_path / f"{n}.jsonl", [story(1)]) for n in "ab")
    with pytest.raises(ValueError, match="is empty or also in training; hold out other files"):
        run(text_files([train], [again]), tmp_path / "out", tokenizer_path)


def test_empty_files_are_no_trouble(tmp_path, tokenizer_path):
    (tmp_path / "a.txt").write_bytes(b"")
    (tmp_path / "b.txt").write_text("some text")
    blank = text_files([write_jsonl(tmp_path / "a.jsonl", ["", " "])], [])
    with pytest.raises(ValueError, match="no training document that is not empty"):
        run(blank, tmp_path / "given", tokenizer_path)
    with pytest.raises(ValueError, match="there is no text to train a tokenizer on"):
        run(text_files([tmp_path / "a.txt"], []), tmp_path / "trained", None)
    both = text_files([tmp_path / "a.txt", tmp_path / "b.txt"], [])
    manifest = run(both, tmp_path / "both", tokenizer_path, held_out_share=0.0)
    assert texts_of(tmp_path / "both", "train") == ["some text"]
    assert manifest.skipped["empty"] == 1


def test_a_broken_file_is_named_and_files_that_changed_are_read_again(
    tmp_path, tokenizer_path, small_pieces
):
    first = write_jsonl(tmp_path / "a.jsonl", ["AAAA" * 5_000])
    good = write_jsonl(tmp_path / "b.jsonl", [story(1, 6_000)])
    bad = tmp_path / "c.jsonl"
    bad.write_text('{"text": "was there before"}\n{"text": 33}\n')
    source = text_files([first, good, bad], [])
    with pytest.raises(ValueError, match=r"c\.jsonl, line 2"):
        run(source, tmp_path / "out", tokenizer_path, held_out_share=0.0)
    assert not (tmp_path / "out" / "manifest.json").exists()
    write_jsonl(first, ["BBBB" * 5_000])
    bad.write_text('{"text": "now it is good, and longer than it was before"}\n')
    manifest = run(source, tmp_path / "out", tokenizer_path, held_out_share=0.0)
    assert texts_of(tmp_path / "out", "train") == [
        "BBBB" * 5_000,
        story(1, 6_000),
        "now it is good, and longer than it was before",
    ]
    assert manifest.source["files"][0]["sha256"] == file_sha256(first)
    suffixes = sorted(path.suffix for path in (tmp_path / "out").iterdir())
    assert suffixes == [*[".docs"] * 3, ".json", ".json", ".model", *[".tokens"] * 3]


def test_training_files_changed_while_holding_out_are_kept_whole_and_kept_apart(
    tmp_path, tokenizer_path, small_pieces
):
    train = write_jsonl(tmp_path / "train.jsonl", [story(n) for n in range(20)])
    held_out = write_jsonl(tmp_path / "valid-1.jsonl", [story(n, 500) for n in range(100, 110)])
    bad = tmp_path / "valid-2.jsonl"
    bad.write_text("{")
    source = text_files([train], [held_out, bad])
    with pytest.raises(ValueError, match="not JSON"):
        run(source, tmp_path / "out", tokenizer_path)
    assert (tmp_path / "out" / "excluded.docs").exists()
    moved = [story(n) for n in range(20)] + [story(105, 500)]
    write_jsonl(train, moved)
    write_jsonl(bad, [story(200)])
    manifest = run(source, tmp_path / "out", tokenizer_path)
    assert texts_of(tmp_path / "out", "train") == moved
    kept = [story(n, 500) for n in range(100, 110) if n != 105]
    assert texts_of(tmp_path / "out", "held_out") == [*kept, story(200)]
    assert manifest.skipped["held_out_also_in_training"] == 1
    verify(tmp_path / "out")


class Killed(BaseException):
    """Not an error anything would catch and tidy up after."""


@pytest.mark.parametrize(
    ("given_tokenizer", "every"), [(True, 4), pytest.param(False, 1, marks=pytest.mark.slow)]
)
def test_killed_before_any_write_it_goes_on_to_the_same_bytes(
    tmp_path, tokenizer_path, monkeypatch, given_tokenizer, every
):
    train = write_jsonl(tmp_path / "train.jsonl", [story(n) for n in range(40)])
    held_out = write_jsonl(tmp_path / "valid.jsonl", [story(n) for n in range(35, 45)])
    source = text_files([train], [held_out])
    tokenizer = tokenizer_path if given_tokenizer else None
    run(source, tmp_path / "whole", tokenizer)
    expected = {p.name: p.read_bytes() for p in (tmp_path / "whole").iterdir()}
    survived, deadly = False, 0
    for deadly in range(0, 20, every):
        folder, writes = tmp_path / f"killed-{deadly}", iter(range(100))

        def write(path, content, writes=writes, deadly=deadly):
            if next(writes) == deadly:
                write_file(path.with_name(f".{path.name}.1.partial"), b"half")
                raise Killed
            write_file(path, content)

        with monkeypatch.context() as patch:
            for module in (preparing, shards, files):
                patch.setattr(module, "write_file", write)
            try:
                run(source, folder, tokenizer)
                survived = True
            except Killed:
                pass
        if not survived:
            run(source, folder, tokenizer)
        assert {p.name: p.read_bytes() for p in folder.iterdir()} == expected
        if survived:
            break
    assert survived
    assert deadly >= 7


def test_a_folder_another_process_prepares_is_refused(tmp_path, tokenizer_path):
    source = text_files([write_jsonl(tmp_path / "a.jsonl", [story(1)])], [])
    refusal = pytest.raises(ValueError, match="is being prepared by another process")
    with _alone_in(tmp_path / "out"), refusal:
        run(source, tmp_path / "out", tokenizer_path)
    run(source, tmp_path / "out", tokenizer_path)


def test_a_folder_begun_otherwise_or_filled_is_refused(tmp_path, tokenizer_path):
    path = write_jsonl(tmp_path / "a.jsonl", [story(1)])
    source = text_files([path], [])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(ValueError, match="other: is not empty"):
        run(source, tmp_path / "other", tokenizer_path)
    broken = Source("text", [*source.files, SourceFile(tmp_path / "a.jsonl", "b.csv")])
    broken.files[1] = SourceFile(write_jsonl(tmp_path / "c.csv", []), "c.csv")
    with pytest.raises(ValueError, match="unknown kind of file"):
        run(broken, tmp_path / "out", tokenizer_path)
    with pytest.raises(ValueError, match="was begun with other files or settings"):
        run(source, tmp_path / "out", tokenizer_path)
    run(source, tmp_path / "done", tokenizer_path)
    with pytest.raises(ValueError, match="done: already prepared"):
        run(source, tmp_path / "done", tokenizer_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"held_out_share": 1.0}, "held-out share"), ({"vocab_size": 10}, "vocab size")],
)
def test_settings_that_cannot_be_meant_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Settings(**settings)


# --- what was written ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prepared_once(tmp_path_factory, tokenizer_path):
    place = tmp_path_factory.mktemp("prepared")
    files = [write_jsonl(place / f"{n}.jsonl", [story(n, 3_000), story(n)]) for n in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "SMALLEST_PIECE", SMALL_PIECE)
        run(text_files(files, []), place / "out", tokenizer_path, held_out_share=0.4)
    return place / "out"


@pytest.fixture
def prepared(prepared_once, tmp_path):
    """A copy that a test may damage."""
    return Path(shutil.copytree(prepared_once, tmp_path / "out"))


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: flip(next(f.glob("train-*.tokens"))), r"\.tokens: damaged, its sha256"),
        (lambda f: flip(next(f.glob("train-*.docs"))), r"\.docs: damaged, its sha256"),
        (lambda f: next(f.glob("train-*.docs")).unlink(), r"\.docs: missing"),
        (
            lambda f: (f / "manifest.json").write_text(
                (f / "manifest.json").read_text().replace("<u2", "<u4")
            ),
            "ids are not held in <u4",
        ),
        (
            lambda f: (f / "tokenizer.model").write_bytes(
                train_tokenizer((story(n) for n in range(9)), vocab_size=300)
            ),
            "not the tokenizer the shards were made with",
        ),
        (lambda f: (f / "manifest.json").write_text("{"), r"manifest\.json: cannot read"),
        (lambda f: (f / "manifest.json").write_text("[]"), "not a manifest"),
        (lambda f: (f / "manifest.json").write_text('{"a": 1}'), "unknown key a"),
        (lambda f: (f / "manifest.json").unlink(), "prepare it with mixerloop data prepare"),
    ],
)
def test_damage_is_named(prepared, damage, message):
    verify(prepared)
    damage(prepared)
    with pytest.raises(ValueError, match=message):
        verify(prepared)


def test_a_truncated_shard_is_refused_when_it_is_opened(prepared):
    path = next(prepared.glob("train-*.tokens"))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ValueError, match=rf"{path.name}: damaged, [\d,]+ bytes instead of"):
        TokenSplit(prepared, "train")


def test_a_document_in_both_splits_is_found(prepared):
    manifest = read_manifest(prepared)
    names = [manifest.train[0].name, manifest.held_out[0].name]
    for suffix in ("tokens", "docs"):
        (prepared / f"{names[1]}.{suffix}").write_bytes(
            (prepared / f"{names[0]}.{suffix}").read_bytes()
        )
    text = (prepared / "manifest.json").read_text()
    data = json.loads(text)
    data["held_out"][0] = data["train"][0] | {"name": names[1]}
    (prepared / "manifest.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match="documents are in both splits"):
        verify(prepared)


def test_large_vocabularies_take_four_bytes(tmp_path):
    assert token_dtype(2**16) == np.dtype("<u2")
    assert token_dtype(2**16 + 1) == np.dtype("<u4")
    shard = write_shard(
        tmp_path, "a", documents=[np.array([1, 70_000])], hashes=[2**64 - 1], text_bytes=3,
        dtype=token_dtype(100_000),
    )  # fmt: skip
    assert np.fromfile(tmp_path / "a.tokens", "<u4").tolist() == [1, 70_000]
    assert shard.tokens == 2


def stopped_preparation(place, tokenizer_path, monkeypatch):
    """A preparation that was killed before it wrote its manifest; returns its source and folder."""
    source = text_files([write_jsonl(place / "a.jsonl", [story(n, 6_000) for n in range(4)])], [])

    def killed(*_):
        raise Killed

    monkeypatch.setattr(preparing, "write_manifest", killed)
    with pytest.raises(Killed):
        run(source, place / "out", tokenizer_path, held_out_share=0.3)
    monkeypatch.undo()
    return source, place / "out"


@pytest.mark.slow
def test_whatever_a_stopped_preparation_left_damaged_is_made_again(
    tmp_path, tokenizer_path, monkeypatch
):
    (tmp_path / "whole").mkdir()
    source, folder = stopped_preparation(tmp_path, tokenizer_path, monkeypatch)
    run(source, tmp_path / "whole/out", tokenizer_path, held_out_share=0.3)
    expected = {p.name: p.read_bytes() for p in (tmp_path / "whole/out").iterdir()}
    left = [p.relative_to(folder) for p in folder.rglob("*") if p.is_file()]
    damaged = [name for name in left if name.name != "preparing.json"]
    assert {name.suffix for name in damaged} >= {".tokens", ".docs", ".model", ".json"}
    for name in damaged:
        for damage in (flip, Path.unlink, lambda path: path.write_bytes(b"")):
            copy = Path(shutil.copytree(folder, tmp_path / "copy"))
            damage(copy / name)
            run(source, copy, tokenizer_path, held_out_share=0.3)
            assert {p.name: p.read_bytes() for p in copy.iterdir()} == expected, name
            shutil.rmtree(copy)


def test_a_damaged_plan_of_a_stopped_preparation_is_named(tmp_path, tokenizer_path, monkeypatch):
    source, folder = stopped_preparation(tmp_path, tokenizer_path, monkeypatch)
    flip(folder / "preparing.json")
    with pytest.raises(ValueError, match=r"preparing\.json: "):
        run(source, folder, tokenizer_path, held_out_share=0.3)
    (folder / "preparing.json").unlink()
    with pytest.raises(ValueError, match=r"preparing\.json: missing"):
        run(source, folder, tokenizer_path, held_out_share=0.3)
