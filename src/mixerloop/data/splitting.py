"""Which part of a text is held out, and the size of a tokenizer that suits it.

A document is held out when its hash is small, so copies of a text are always in the same split.
With many documents the share that was asked says how small. With few documents that rule would hold
out nothing, or far too much: long documents are first cut into blocks, every block is a document,
and the limit of the hash is chosen to hold out the share that was asked, in characters of text.
A share that would leave a split with less text than two small blocks is rejected.
"""

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from mixerloop.data.sources import Source, Split

MANY_DOCUMENTS = 1000
"""From this number on, documents are whole, and their hash alone decides."""
HELD_OUT_SHARE = 0.01
"""Default share of many documents."""
SMALL_HELD_OUT_SHARE = 0.1
"""Default share of a small text; it falls to that of many documents as the text grows."""
HELD_OUT_CHARACTERS = 2**17
"""Held-out characters at which the default share begins to fall."""
HELD_OUT_BLOCKS = 32
"""The number of held-out blocks to aim for; from 20 documents on, intervals are trusted."""
SMALLEST_BLOCK = 1000
"""Characters of a block, unless the smaller split is to have less text than two such blocks."""
LEAST_BLOCK = 100
"""Characters of the smallest block that a text is cut into: a sentence or two."""
LEAST_HELD_OUT = 2
"""Held-out blocks where there are enough blocks; a single one gives no interval."""
LEAST_SPLIT = LEAST_HELD_OUT * LEAST_BLOCK
"""Characters of the smaller split; a share that gives less is rejected."""
VOCAB_SIZE = 4096
"""Default size of a tokenizer that is trained on the source."""
SMALLEST_VOCAB_SIZE = 512
PIECE_CHARACTERS = 256
"""Characters of text for each piece of a tokenizer: a piece should be seen often."""
BYTE_PIECES = 260
"""Pieces that every tokenizer has: the bytes, and the control tokens."""
WORD_MARK = "\u2581"  # SentencePiece's sign for a space; it cannot tell this character from a space
BOUNDARIES = (re.compile(r"\n[^\S\n]*\n\s*"), re.compile(r"\n"), re.compile(r"\s"))
"""Where a block may end, best first: a blank line, a line, a word."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of preparation; None where the source or a given tokenizer decides."""

    held_out_share: float | None = None
    """Share of documents held out by their hash, where files do not decide."""
    vocab_size: int | None = None
    """Size of the tokenizer to train; None if the caller gives a tokenizer."""
    block_characters: int | None = None
    """The size of blocks that documents are cut into; None for whole documents."""
    held_out_below: int | None = None
    """The limit of the hash of held-out documents; None if the share decides."""

    def __post_init__(self) -> None:
        """Reject shares and sizes outside their range."""
        if self.held_out_share is not None and not 0 <= self.held_out_share < 1:
            raise ValueError(f"held-out share must be from 0 to 1, got {self.held_out_share}")
        if self.vocab_size is not None and not 260 <= self.vocab_size <= 2**24:
            raise ValueError(f"vocab size must be from 260 to 2^24, got {self.vocab_size}")


def canonical(document: str) -> str:
    """The text of a document, stripped, with the word mark replaced by a space."""
    return document.replace(WORD_MARK, " ").strip()


def hash_of(text: str) -> int:
    """A 64-bit hash of a document's text: its identity, which also decides its split."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def split_of(split: Split | None, digest: int, settings: Settings) -> Split:
    """The split of a document: that of its file, or the one that its hash decides."""
    if split is not None:
        return split
    limit = settings.held_out_below
    if limit is None:
        limit = (settings.held_out_share or 0.0) * 2**64
    return "held_out" if digest < limit else "train"


def documents_of(text: str, split: Split | None, settings: Settings) -> Iterator[str]:
    """A text of a source as documents: the text itself, or its blocks if blocks are split."""
    if split is not None or settings.block_characters is None:
        yield text
    else:
        yield from _blocks(canonical(text), settings.block_characters)


def _blocks(text: str, size: int) -> Iterator[str]:
    """Cut a text into blocks of `size` characters or a little more, at blank lines if it can."""
    start = 0
    while len(text) - start >= 2 * size:
        end = _boundary(text, start + size, start + size + size // 2)
        yield text[start:end]
        start = end
    yield text[start:]


def _boundary(text: str, first: int, last: int) -> int:
    """The end of a blank line between two places, or else of a line or a word."""
    for boundary in BOUNDARIES:
        if found := boundary.search(text, first, last):
            return found.end()
    return first


# --- the choice for a text -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Extent:
    """How much text may become training text."""

    documents: int
    characters: int
    alphabet: int
    """Different characters."""


def text_settings(
    source: Source, *, held_out_share: float | None, vocab_size: int | None, trains_tokenizer: bool
) -> Settings:
    """The split of a text, and the size of its tokenizer, where the caller leaves them open.

    Reads the beginning of the source, and all of it twice if its documents are few.
    """
    extent = _extent_of(source)
    if extent.documents == 0:
        raise ValueError("these files hold no text to train on")
    if trains_tokenizer and vocab_size is None:
        vocab_size = _fitting_vocab_size(extent)
    if any(file.split == "held_out" for file in source.files):
        return Settings(vocab_size=vocab_size)
    if extent.documents >= MANY_DOCUMENTS:
        share = HELD_OUT_SHARE if held_out_share is None else held_out_share
        return Settings(held_out_share=share, vocab_size=vocab_size)
    share = _small_share(extent) if held_out_share is None else held_out_share
    smaller_split = int(extent.characters * min(share, 1 - share))
    if smaller_split < LEAST_SPLIT:
        raise _too_small(extent, share)
    smallest = min(SMALLEST_BLOCK, smaller_split // LEAST_HELD_OUT)
    size = max(smaller_split // HELD_OUT_BLOCKS, smallest)
    blocks = Settings(block_characters=size)
    return Settings(
        held_out_share=share,
        vocab_size=vocab_size,
        block_characters=size,
        held_out_below=_limit(source, share, blocks),
    )


def _extent_of(source: Source) -> _Extent:
    """Count the text, as far as the count decides anything."""
    documents = characters = 0
    alphabet: set[str] = set()
    for text in _texts(source):
        documents += 1
        characters += len(text)
        alphabet.update(text)
        if documents >= MANY_DOCUMENTS and characters >= VOCAB_SIZE * PIECE_CHARACTERS:
            break
    return _Extent(documents=documents, characters=characters, alphabet=len(alphabet))


def _texts(source: Source) -> Iterator[str]:
    """All texts that are not empty and not in held-out files."""
    for file in source.files:
        if file.split != "held_out":
            yield from filter(None, map(canonical, file.documents()))


def _fitting_vocab_size(extent: _Extent) -> int:
    """A power of two: enough text for each piece, and pieces for most characters of the text."""
    by_text = 1 << max(0, (extent.characters // PIECE_CHARACTERS).bit_length() - 1)
    by_alphabet = 1 << (5 * (BYTE_PIECES + extent.alphabet) // 4 - 1).bit_length()
    return min(VOCAB_SIZE, max(SMALLEST_VOCAB_SIZE, by_text, by_alphabet))


def _small_share(extent: _Extent) -> float:
    share = min(SMALL_HELD_OUT_SHARE, HELD_OUT_CHARACTERS / extent.characters)
    least = min(0.5, LEAST_SPLIT / extent.characters + 1e-4)  # not below it when rounded
    return round(max(HELD_OUT_SHARE, share, least), 4)


def _too_small(extent: _Extent, share: float) -> ValueError:
    least = math.ceil(1e4 * LEAST_SPLIT / extent.characters) / 1e4
    fix = (
        f"give a held_out_share from {least:g} to {1 - least:g}"
        if least <= 0.5
        else "give more text"
    )
    return ValueError(
        f"a held-out share of {share:g} of {extent.characters:,} characters of text leaves a split "
        f"with fewer than {LEAST_SPLIT}; {fix}, or name files to hold out: held_out"
    )


def _limit(source: Source, share: float, blocks: Settings) -> int:
    """The limit of the hash that holds out the share most nearly, and leaves text in both splits.

    Copies of a block have one hash and are counted together.
    """
    characters: dict[int, int] = {}
    for text in _texts(source):
        for block in map(canonical, documents_of(text, None, blocks)):
            if block:
                digest = hash_of(block)
                characters[digest] = characters.get(digest, 0) + len(block)
    digests = sorted(characters)
    if len(digests) < 2:
        raise ValueError(
            f"{sum(characters.values()):,} characters of text cannot be divided into training and "
            "held-out text; give more text, or files to hold out: held_out"
        )
    held_out = list(accumulate(characters[digest] for digest in digests))
    wanted = share * held_out[-1]
    numbers = range(min(LEAST_HELD_OUT, len(digests) - 1), len(digests))
    return digests[min(numbers, key=lambda number: abs(held_out[number - 1] - wanted))]
