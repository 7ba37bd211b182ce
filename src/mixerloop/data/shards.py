"""Prepared tokens on disk: shards, their documents, and a manifest with counts and hashes.

    DIR/manifest.json             source, tokenizer, splits, every shard with its counts and sha256
    DIR/tokenizer.model           the SentencePiece model
    DIR/train-00000-000.tokens    token ids, uint16 or uint32, document after document
    DIR/train-00000-000.docs      for each document its first token and the hash of its text, uint64

A shard is immutable and memory-mapped. Shards follow one another in the manifest's order, and a
split reads as one long array of tokens.
"""

import hashlib
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
from mixerloop.files import file_sha256, json_text, read_json, write_file
from mixerloop.parsing import from_dict

MANIFEST = "manifest.json"
FORMAT = "mixerloop-tokens-1"
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
    if manifest.dtype != token_dtype(manifest.vocab_size).str:
        raise ValueError(f"{path}: {manifest.vocab_size} ids are not held in {manifest.dtype}")
    return manifest


def fingerprint(folder: Path) -> str:
    """Identity of prepared data: the sha256 of its manifest, which has the sha256 of all files."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder}: no {MANIFEST}; prepare it with mixerloop data prepare")
    return file_sha256(path)


def open_tokenizer(folder: Path, manifest: Manifest) -> Tokenizer:
    """The tokenizer of the shards; raises if the file in the folder is another model."""
    tokenizer = Tokenizer(folder / runs.TOKENIZER)
    identity = tokenizer.fingerprint, tokenizer.vocab_size
    if identity != (manifest.tokenizer_sha256, manifest.vocab_size):
        raise ValueError(f"{folder / runs.TOKENIZER}: not the tokenizer the shards were made with")
    return tokenizer


class TokenSplit:
    """A split of a prepared folder, read as if it were one array."""

    def __init__(self, folder: Path, split: Split) -> None:
        self.folder, self.split = folder, split
        self.manifest = read_manifest(folder)
        self.shards = self.manifest.shards(split)
        self._ends = list(accumulate(shard.tokens for shard in self.shards))
        dtype = np.dtype(self.manifest.dtype)
        for shard in self.shards:
            path = folder / f"{shard.name}.tokens"
            size = path.stat().st_size if path.is_file() else None
            if size != shard.tokens * dtype.itemsize:
                expected = shard.tokens * dtype.itemsize
                raise ValueError(f"{path}: {size} bytes, the manifest says {expected}")
        self._open = lru_cache(maxsize=OPEN_SHARDS)(
            lambda name: np.memmap(folder / f"{name}.tokens", dtype=dtype, mode="r")
        )

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
            parts.append(self._open(self.shards[index].name)[start - begin : end - begin])
            start, index = end, index + 1
        if len(parts) == 1:
            return np.array(parts[0])
        return np.concatenate(parts) if parts else np.empty(0, dtype=self.manifest.dtype)

    def document_starts(self) -> np.ndarray:
        """The first token of every document, in order, counted over the whole split."""
        parts, begin = [np.empty(0, dtype=np.int64)], 0
        for shard in self.shards:
            parts.append(read_docs(self.folder, shard)[:, 0].astype(np.int64) + begin)
            begin += shard.tokens
        return np.concatenate(parts)


def read_docs(folder: Path, shard: Shard) -> np.ndarray:
    """The index of a shard: [documents, 2] of first token and hash."""
    path = folder / f"{shard.name}.docs"
    if not path.is_file() or path.stat().st_size != 16 * shard.documents:
        raise ValueError(f"{path}: missing or cut off")
    return np.fromfile(path, dtype="<u8").reshape(-1, 2)


def document_hashes(folder: Path, shards: tuple[Shard, ...] | list[Shard]) -> np.ndarray:
    """The hashes of all documents of some shards, sorted and without repetition."""
    parts = [read_docs(folder, shard)[:, 1] for shard in shards]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype="<u8")


def verify(folder: Path) -> Manifest:
    """Check every file against the manifest, and that no document is in both splits."""
    manifest = read_manifest(folder)
    tokenizer = open_tokenizer(folder, manifest)
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
    for suffix, expected in (("tokens", shard.tokens_sha256), ("docs", shard.docs_sha256)):
        path = folder / f"{shard.name}.{suffix}"
        if not path.is_file():
            raise ValueError(f"{path}: missing")
        if file_sha256(path) != expected:
            raise ValueError(f"{path}: damaged, its sha256 is not the manifest's")
    tokens = np.fromfile(folder / f"{shard.name}.tokens", dtype=manifest.dtype)
    starts = read_docs(folder, shard)[:, 0]
    if len(tokens) != shard.tokens or len(starts) != shard.documents:
        raise ValueError(f"{folder / shard.name}: its counts are not the manifest's")
    if len(tokens) and int(tokens.max()) >= manifest.vocab_size:
        raise ValueError(f"{folder / shard.name}: an id outside the vocabulary")
    if bos_id >= 0 and not (tokens[starts.astype(np.int64)] == bos_id).all():
        raise ValueError(f"{folder / shard.name}: a document does not begin with the start token")
