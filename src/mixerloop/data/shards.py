"""Prepared tokens on disk: shards, their documents, and a manifest with counts and hashes.

    DIR/contents.json             size and sha256 of the manifest and the tokenizer
    DIR/manifest.json             source, tokenizer, splits, every shard with its counts and sha256
    DIR/tokenizer.model           the tokenizer: a SentencePiece model, or tokenizer.json with
                                  tokenizer_config.json
    DIR/train-00000-000.tokens    token ids, uint16 or uint32, document after document
    DIR/train-00000-000.docs      for each document its first token and the hash of its text, uint64

A shard is immutable and memory-mapped. Shards follow one another in the manifest's order, and a
split reads as one long array of tokens. Opening a folder checks manifest and tokenizer against
`contents.json`. A shard is hashed when it is first read, except in training, which hashes all
shards in the background (`data_check.py`).
"""

import hashlib
import os
import re
import weakref
from bisect import bisect_right
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, get_args

import numpy as np

from mixerloop import runs
from mixerloop.data.sources import Split
from mixerloop.data.tokenizer import Tokenizer
from mixerloop.data.tokenizer_files import tokenizer_in
from mixerloop.files import (
    CONTENTS,
    SealedFile,
    file_sha256,
    is_there,
    json_text,
    read_json,
    seal_folder,
    sealed_files,
    write_file,
)
from mixerloop.parsing import from_dict

MANIFEST = runs.MANIFEST
FORMAT = "mixerloop-tokens-1"
DOC_BYTES = 16  # first token and hash of a document, uint64 each
OPEN_SHARDS = 256  # a memory map uses a file handle, and a process may have about 1,000


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The counts and hashes of a file of tokens and of its index of documents."""

    name: str
    tokens: int
    documents: int
    text_bytes: int
    """UTF-8 bytes of the documents, for bits per byte."""
    tokens_sha256: str
    docs_sha256: str

    def check(self) -> None:
        """Reject counts, names and hashes that no preparation writes."""
        if not re.fullmatch(r"[\w-]+", self.name):
            raise ValueError(f"{self.name!r} is not the name of a shard")
        if min(self.tokens, self.documents) < 1 or self.text_bytes < 0:
            raise ValueError(f"{self.name}: its counts must be positive")
        if not all(re.fullmatch("[0-9a-f]{64}", h) for h in (self.tokens_sha256, self.docs_sha256)):
            raise ValueError(f"{self.name}: not a sha256")

    def tokens_file(self, folder: Path, dtype: str) -> SealedFile:
        """The file of the shard's tokens."""
        return SealedFile(
            path=folder / f"{self.name}.tokens",
            num_bytes=self.tokens * np.dtype(dtype).itemsize,
            sha256=self.tokens_sha256,
        )

    def docs_file(self, folder: Path) -> SealedFile:
        """The file of the shard's index of documents."""
        return SealedFile(
            path=folder / f"{self.name}.docs",
            num_bytes=self.documents * DOC_BYTES,
            sha256=self.docs_sha256,
        )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of a folder of prepared tokens."""

    format: str
    source: dict[str, Any]
    tokenizer_sha256: str
    vocab_size: int
    dtype: str
    skipped: dict[str, int]
    """Number of skipped documents: empty, or held out and also in training."""
    train: tuple[Shard, ...]
    held_out: tuple[Shard, ...]

    def shards(self, split: Split) -> tuple[Shard, ...]:
        """The shards of a split, in order."""
        return self.train if split == "train" else self.held_out

    def __post_init__(self) -> None:
        """Reject counts, names and hashes that no preparation writes."""
        if self.vocab_size < 1:
            raise ValueError(f"vocab_size must be at least 1, got {self.vocab_size}")
        if self.dtype != token_dtype(self.vocab_size).str:
            raise ValueError(f"{self.vocab_size} ids are not held in {self.dtype}")
        if not self.train:
            raise ValueError("train has no shards")
        shards = (*self.train, *self.held_out)
        if len({shard.name for shard in shards}) < len(shards):
            raise ValueError("two shards have the same name")
        for shard in shards:
            shard.check()


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest type that holds every token id."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def write_shard(
    folder: Path,
    name: str,
    *,
    documents: list[np.ndarray],
    hashes: list[int],
    text_bytes: int,
    dtype: np.dtype,
) -> Shard:
    """Write the tokens and the index of some documents."""
    starts = np.cumsum([0, *(len(document) for document in documents[:-1])], dtype=np.uint64)
    docs = np.stack([starts, np.array(hashes, dtype=np.uint64)], axis=1).astype("<u8").tobytes()
    tokens = np.concatenate(documents).astype(dtype).tobytes()
    write_file(folder / f"{name}.tokens", tokens)
    write_file(folder / f"{name}.docs", docs)
    return Shard(
        name=name,
        tokens=len(tokens) // dtype.itemsize,
        documents=len(documents),
        text_bytes=text_bytes,
        tokens_sha256=hashlib.sha256(tokens).hexdigest(),
        docs_sha256=hashlib.sha256(docs).hexdigest(),
    )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, which makes the folder complete."""
    write_file(folder / MANIFEST, json_text(asdict(manifest)))


def seal_manifest(folder: Path) -> None:
    """Seal the manifest and the tokenizer, if there is one: the last step of a preparation."""
    names = (MANIFEST, *runs.TOKENIZERS, runs.TOKENIZER_CONFIG)
    seal_folder(folder, [name for name in names if (folder / name).is_file()])


def check_manifest_seal(folder: Path) -> None:
    """Raise unless the manifest and the tokenizer of a folder are as they were prepared."""
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"{folder}: no {MANIFEST}; prepare it with mixerloop data prepare")
    if not is_there(folder / CONTENTS):
        raise ValueError(
            f"{folder / CONTENTS}: missing, as in data that version 0.1.0 prepared; check the data "
            f"and seal it: mixerloop data verify {folder} --seal"
        )
    sealed = sealed_files(folder)
    if MANIFEST not in sealed:
        raise ValueError(f"{folder / CONTENTS}: does not list {MANIFEST}")
    for file in sealed.values():
        file.check()
    runs.tokenizer_file(folder)  # raises for a second tokenizer


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder of tokens strictly."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder}: no {MANIFEST}; prepare it with mixerloop data prepare")
    try:
        data = read_json(path)
        if not isinstance(data, dict):
            raise ValueError("not a manifest")
        manifest = from_dict(Manifest, data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if manifest.format != FORMAT:
        raise ValueError(f"{path}: format {manifest.format}, this version reads {FORMAT}")
    return manifest


def fingerprint(folder: Path) -> str:
    """Identity of prepared data: the sha256 of its manifest, which has the sha256 of all files."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder}: no {MANIFEST}; prepare it with mixerloop data prepare")
    return file_sha256(path)


def tokenizer_of(folder: Path, manifest: Manifest) -> Tokenizer:
    """The tokenizer of the shards; raises if the folder has none, or another."""
    tokenizer = tokenizer_in(folder)
    if tokenizer is None:
        raise ValueError(f"{folder}: its tokenizer is missing: {' or '.join(runs.TOKENIZERS)}")
    identity = tokenizer.fingerprint, tokenizer.vocab_size
    if identity != (manifest.tokenizer_sha256, manifest.vocab_size):
        path = runs.tokenizer_file(folder)
        raise ValueError(f"{path}: not the tokenizer the shards were made with")
    return tokenizer


class TokenSplit:
    """A split of a prepared folder, read as if it were one array.

    A shard is hashed when it is first read, unless the caller checks all shards by itself.
    """

    def __init__(self, folder: Path, split: Split, *, hashes_shards: bool = True) -> None:
        self.folder, self.split = folder, split
        self.manifest = read_manifest(folder)
        self.shards = self.manifest.shards(split)
        self._ends = list(accumulate(shard.tokens for shard in self.shards))
        self._tokens = [shard.tokens_file(folder, self.manifest.dtype) for shard in self.shards]
        for file in self._tokens:
            file.check_size()
        self._unchecked = set(range(len(self.shards))) if hashes_shards else set()
        self._open = lru_cache(maxsize=OPEN_SHARDS)(self._opened)

    def __len__(self) -> int:
        """Tokens in the split."""
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, stop: int) -> np.ndarray:
        """The tokens from `start` up to `stop`, from one shard or several."""
        if not 0 <= start <= stop <= len(self):
            raise ValueError(f"tokens {start} to {stop} of {len(self)} were asked for")
        parts = []
        index = bisect_right(self._ends, start)
        while start < stop:
            begin = self._ends[index] - self.shards[index].tokens
            end = min(stop, self._ends[index])
            parts.append(self._open(index).read(start - begin, end - begin))
            start, index = end, index + 1
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, dtype=self.manifest.dtype)

    def _opened(self, index: int) -> "_OpenShard":
        file = self._tokens[index]
        if index in self._unchecked:
            file.check()
            self._unchecked.remove(index)
        return _OpenShard(file, np.dtype(self.manifest.dtype))

    def document_starts(self) -> np.ndarray:
        """The first token of every document, in order, counted over the whole split."""
        parts, begin = [np.empty(0, dtype=np.int64)], 0
        for shard in self.shards:
            parts.append(read_docs(self.folder, shard)[:, 0].astype(np.int64) + begin)
            begin += shard.tokens
        return np.concatenate(parts)


class _OpenShard:
    """An open file of tokens.

    It is read and not mapped into memory: a mapped file that is cut off ends the process.
    """

    def __init__(self, file: SealedFile, dtype: np.dtype[Any]) -> None:
        self._file, self._dtype = file, dtype
        self._descriptor = os.open(file.path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, start: int, stop: int) -> np.ndarray:
        """The tokens from `start` up to `stop`; raises if the file is shorter than it was."""
        first, end = start * self._dtype.itemsize, stop * self._dtype.itemsize
        content = bytearray()
        while first + len(content) < end:
            at = first + len(content)
            block = os.pread(self._descriptor, end - at, at)
            if not block:
                raise ValueError(f"{self._file.path}: damaged, it ends at byte {at:,}")
            content += block
        return np.frombuffer(content, dtype=self._dtype)


def read_docs(folder: Path, shard: Shard) -> np.ndarray:
    """The index of a shard: [documents, 2] of first token and hash."""
    file = shard.docs_file(folder)
    file.check()
    return np.fromfile(file.path, dtype="<u8").reshape(-1, 2)


def document_hashes(folder: Path, shards: tuple[Shard, ...] | list[Shard]) -> np.ndarray:
    """The hashes of all documents of some shards, sorted and without repetition."""
    parts = [read_docs(folder, shard)[:, 1] for shard in shards]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype="<u8")


def verify(folder: Path) -> Manifest:
    """Check every file against the manifest, and that no document is in both splits."""
    manifest = read_manifest(folder)
    tokenizer = tokenizer_of(folder, manifest)
    for split in get_args(Split):
        verify_split(folder, manifest, split, bos_id=tokenizer.bos_id)
    both = np.intersect1d(
        document_hashes(folder, manifest.train), document_hashes(folder, manifest.held_out)
    )
    if len(both):
        raise ValueError(f"{folder}: {len(both)} documents are in both splits")
    return manifest


def verify_split(folder: Path, manifest: Manifest, split: Split, *, bos_id: int) -> None:
    """Check every file of a split against the manifest."""
    for shard in manifest.shards(split):
        _verify_shard(folder, shard, manifest, bos_id=bos_id)


def _verify_shard(folder: Path, shard: Shard, manifest: Manifest, *, bos_id: int) -> None:
    shard.tokens_file(folder, manifest.dtype).check()
    tokens = np.fromfile(folder / f"{shard.name}.tokens", dtype=manifest.dtype)
    starts = read_docs(folder, shard)[:, 0]
    if len(tokens) and int(tokens.max()) >= manifest.vocab_size:
        raise ValueError(f"{folder / shard.name}: an id outside the vocabulary")
    if bos_id >= 0 and not (tokens[starts.astype(np.int64)] == bos_id).all():
        raise ValueError(f"{folder / shard.name}: a document does not begin with the start token")
