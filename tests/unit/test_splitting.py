"""Which documents are held out, and how large a tokenizer fits a text."""

import random

import pytest

from mixerloop.data.corpora import prepare_text
from mixerloop.data.shards import read_manifest, verify
from mixerloop.data.sources import Source, text_files
from mixerloop.data.splitting import (
    Settings,
    _blocks,
    canonical,
    documents_of,
    hash_of,
    split_of,
    text_settings,
)


def text_of(characters, seed=0, alphabet="abcdefgh"):
    """Paragraphs of random words."""
    generator = random.Random(seed)
    paragraphs, length = [], 0
    while length < characters:
        words = ("".join(generator.choices(alphabet, k=5)) for _ in range(40))
        paragraphs.append(" ".join(words))
        length += len(paragraphs[-1]) + 2
    return "\n\n".join(paragraphs)[:characters]


class Texts:
    """A file of a source whose texts are in memory."""

    def __init__(self, texts, split=None):
        self.texts, self.split = texts, split

    def documents(self):
        return iter(self.texts)


def settings_of(texts, share=None, vocab_size=None, split=None):
    return text_settings(
        Source("text", [Texts(texts, split)]),  # pyright: ignore[reportArgumentType]
        held_out_share=share,
        vocab_size=vocab_size,
        trains_tokenizer=True,
    )


def splits(texts, settings):
    """The documents of both splits."""
    documents = {"train": [], "held_out": []}
    for text in texts:
        for document in map(canonical, documents_of(text, None, settings)):
            documents[split_of(None, hash_of(document), settings)].append(document)
    return documents["train"], documents["held_out"]


@pytest.mark.parametrize("share", [None, 0.01, 0.1, 0.4, 0.9])
@pytest.mark.parametrize(
    "texts",
    [
        [text_of(100_000)],
        [text_of(20_000 * n, n) for n in range(1, 6)],
        [text_of(2_000, n) for n in range(300)],
        [text_of(400_000), *(text_of(300, n) for n in range(20))],
    ],
    ids=["one file", "five files", "300 documents", "one long and 20 short"],
)
def test_few_documents_hold_out_the_share_that_was_asked(texts, share):
    train, held_out = splits(texts, settings_of(texts, share))
    total = sum(map(len, train)) + sum(map(len, held_out))
    assert sum(map(len, held_out)) / total == pytest.approx(share or 0.1, abs=0.01)
    assert train


@pytest.mark.parametrize("characters", [1_050, 1_500, 7_000])
def test_a_small_text_holds_out_enough_for_an_interval(characters):
    texts = [text_of(characters)]
    train, held_out = splits(texts, settings_of(texts))
    assert len(held_out) >= 2
    assert 0.05 < sum(map(len, held_out)) / characters < 0.2
    assert len(train) > len(held_out)


@pytest.mark.parametrize(
    ("characters", "share", "fix"),
    [
        (
            2_000,
            1e-3,
            "give a held_out_share from 0.1.* to 0.[89].*, or name files to hold out",
        ),
        (30_000, 1e-4, "give a held_out_share from 0.0067 to 0.9933, or"),
        (30_000, 0.9999, "give a held_out_share from 0.0067 to 0.9933, or"),
        (300, None, "give more text, or name files to hold out: held_out"),
    ],
)
def test_a_share_that_would_cut_a_text_into_scraps_is_rejected(characters, share, fix):
    with pytest.raises(ValueError, match=f"leaves a split with fewer than 200; {fix}"):
        settings_of([text_of(characters)], share)


@pytest.mark.parametrize("characters", [450, 2_000, 30_000])
def test_the_smallest_share_that_is_accepted_makes_no_scraps(characters):
    train, held_out = splits(texts := [text_of(characters)], settings_of(texts, 201 / characters))
    assert len(held_out) >= 2
    shortest = min(map(len, (*train, *held_out)))
    assert shortest >= 45  # half of 100, the last block; white space at its ends is stripped


def test_many_documents_are_whole_and_their_hash_decides():
    texts = [f"{n} {'tale ' * 400}" for n in range(1500)]
    settings = settings_of(texts)
    assert settings == Settings(held_out_share=0.01, vocab_size=4096)
    _, held_out = splits(texts, settings)
    assert held_out == [t for t in map(canonical, texts) if hash_of(t) < 0.01 * 2**64]


def test_copies_of_a_block_are_in_one_split():
    text = text_of(30_000)
    train, held_out = splits([text, f" {text}\n"], settings_of([text, text], 0.3))
    assert not set(train) & set(held_out)
    assert sum(map(len, held_out)) == pytest.approx(0.3 * 60_000, rel=0.1)


def test_the_default_share_falls_as_the_text_grows():
    shares = [settings_of([text_of(10**power)]).held_out_share for power in (4, 6, 7)]
    assert shares == [0.1, 0.1, 0.0131]


@pytest.mark.parametrize("texts", [["x" * 250] * 2, ["x" * 150] * 9])
def test_text_that_leaves_a_split_empty_is_rejected(texts):
    with pytest.raises(ValueError, match="cannot be divided into training and held-out text; give"):
        settings_of(texts, 0.5)


def test_files_without_text_are_rejected():
    with pytest.raises(ValueError, match="these files hold no text"):
        settings_of(["", " \n"])


@pytest.mark.parametrize("text", [text_of(50_000), "line\n" * 5_000, "word " * 5_000, "x" * 9_000])
def test_blocks_are_the_text_and_end_where_it_allows(text):
    blocks = list(_blocks(text, 1_000))
    assert "".join(blocks) == text
    assert all(500 <= len(block) < 2_000 for block in blocks)
    if "\n" in text:
        assert all(block.endswith("\n") for block in blocks[:-1])
    if "\n\n" in text:
        assert all(block.endswith("\n\n") for block in blocks[:-1])


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (text_of(35_000), 512),
        (text_of(300_000), 1024),
        (text_of(2**20), 4096),
        (text_of(9_000, alphabet="".join(map(chr, range(0x4E00, 0x4E00 + 1_200)))), 2048),
    ],
)
def test_the_vocabulary_grows_with_the_text_and_its_alphabet(text, size):
    assert settings_of([text]).vocab_size == size
    assert settings_of([text], split="train").vocab_size == size
    assert settings_of([text], vocab_size=300).vocab_size == 300


def test_one_file_is_prepared_to_the_same_bytes_by_any_number_of_workers(tmp_path):
    (tmp_path / "book.txt").write_text(text_of(20_000))
    contents = []
    for workers in (1, 2):
        folder = tmp_path / f"out-{workers}"
        prepare_text([tmp_path / "book.txt"], folder, vocab_size=300, workers=workers)
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert contents[0] == contents[1]
    verify(tmp_path / "out-1")
    assert read_manifest(tmp_path / "out-1").held_out


def test_a_file_that_is_held_out_is_not_in_training(tmp_path):
    books = tmp_path / "books"
    books.mkdir()
    for name in ("a", "b", "c"):
        (books / f"{name}.txt").write_text(f"the text of {name}")
    files = text_files([books], [books / "b.txt"]).files
    names = [(file.name, file.split) for file in files]
    assert names == [("books/a.txt", "train"), ("books/c.txt", "train"), ("b.txt", "held_out")]
    with pytest.raises(ValueError, match="every file is held out, so none is left to train on"):
        text_files([books / "b.txt"], [books])


def test_a_share_that_holds_out_nothing_is_rejected(tmp_path):
    for share, message in ((0.0, "must be above 0"), (1e-12, "holds out no document; give a larg")):
        (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 1_000)
        with pytest.raises(ValueError, match=message):
            prepare_text(
                *([tmp_path / "a.jsonl"], tmp_path / "out"),
                held_out_share=share, vocab_size=300, workers=1,
            )  # fmt: skip
