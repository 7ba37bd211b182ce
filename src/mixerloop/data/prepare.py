"""From a source to verified shards: all cores, one result, whatever happens on the way.

Files are taken in groups and their documents in pieces of a fixed size of text. A piece becomes a
shard per split, and a small record once its shards are on disk. Started again, preparation reads
the records, skips what is done and does the rest; the bytes that come out depend neither on
interruptions nor on the number of workers.
"""

import hashlib
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mixerloop import runs
from mixerloop.config import from_dict
from mixerloop.data.shards import (
    FORMAT,
    MANIFEST,
    Manifest,
    Shard,
    document_hashes,
    read_manifest,
    token_dtype,
    write_manifest,
    write_shard,
)
from mixerloop.data.sources import Source, SourceFile, Split
from mixerloop.data.tokenizer import Tokenizer, train_tokenizer

PLAN = "preparing.json"
RECORDS = "records"
EXCLUDED = "excluded.docs"
SMALLEST_PIECE, LARGEST_PIECE = 2**20, 2**26  # bytes of text in a shard
PIECES = 64  # about as many as a source is cut into, within those bounds
SAMPLE_BYTES = 2**24  # text a tokenizer is trained on

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What preparation does with a source."""

    held_out_share: float = 0.01
    """Share of documents held out by their hash, where files do not decide."""
    vocab_size: int = 4096
    """Size of the tokenizer to train, where none is given."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if not 0 <= self.held_out_share < 1:
            raise ValueError(f"held-out share must be from 0 to 1, got {self.held_out_share}")
        if not 260 <= self.vocab_size <= 2**24:
            raise ValueError(f"vocab size must be from 260 to 2^24, got {self.vocab_size}")


@dataclass(frozen=True)
class Group:
    """Files that are read together, all of one split."""

    index: int
    files: list[SourceFile]


@dataclass(frozen=True, kw_only=True)
class Record:
    """One piece that is done."""

    empty: int
    excluded: int
    train: Shard | None = None
    held_out: Shard | None = None


def prepare(
    source: Source,
    folder: Path,
    *,
    settings: Settings,
    tokenizer_path: Path | None,
    workers: int,
    progress: Progress,
) -> Manifest:
    """Prepare a source into a folder, or go on with what was begun there."""
    if not source.files:
        raise ValueError("the source has no files")
    plan = _plan(source, settings, tokenizer_path)
    if _begin(folder, plan) == "only cleaning is left":
        _clean(folder)
        return read_manifest(folder)
    tokenizer = _tokenizer(source, folder, settings, tokenizer_path, progress)
    groups = _groups(source, plan["piece_bytes"])
    training = [group for group in groups if group.files[0].split != "held_out"]
    holding_out = [group for group in groups if group.files[0].split == "held_out"]

    work = _Work(folder, settings, plan["piece_bytes"], workers, progress, len(groups))
    work.run(training)
    if holding_out:
        _write_excluded(folder)
        work.run(holding_out)
    return _finish(folder, source, settings, tokenizer, groups)


# --- the plan ----------------------------------------------------------------------------------


def _plan(source: Source, settings: Settings, tokenizer_path: Path | None) -> dict[str, Any]:
    """Everything the result depends on; a folder begun under another plan is not gone on with."""
    sizes = [file.path.stat().st_size for file in source.files]
    piece_bytes = min(max(sum(sizes) // PIECES, SMALLEST_PIECE), LARGEST_PIECE)
    return {
        "format": FORMAT,
        "source": source.kind,
        "files": [[f.name, f.split, size] for f, size in zip(source.files, sizes, strict=True)],
        "settings": asdict(settings),
        "tokenizer": None if tokenizer_path is None else Tokenizer(tokenizer_path).fingerprint,
        "piece_bytes": piece_bytes,
    }


def _begin(folder: Path, plan: dict[str, Any]) -> Literal["work is left", "only cleaning is left"]:
    finished = (folder / MANIFEST).exists()
    if (folder / PLAN).exists():
        if runs.read_json(folder / PLAN) != plan:
            raise ValueError(f"{folder}: was begun with other files or settings; remove it first")
        return "only cleaning is left" if finished else "work is left"
    if finished:
        raise ValueError(f"{folder}: already prepared; choose another folder or remove it")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder}: is not empty; choose another folder")
    (folder / RECORDS).mkdir(parents=True, exist_ok=True)
    runs.write_file(folder / PLAN, runs.to_json(plan))
    return "work is left"


def _groups(source: Source, piece_bytes: int) -> list[Group]:
    """Small files together until they fill a piece, large ones alone, splits apart."""
    groups: list[list[SourceFile]] = []
    filled = piece_bytes
    for file in source.files:
        size = file.path.stat().st_size
        if filled + size > piece_bytes or groups[-1][0].split != file.split:
            groups.append([])
            filled = 0
        groups[-1].append(file)
        filled += size
    return [Group(index, files) for index, files in enumerate(groups)]


def _pieces(group: Group, piece_bytes: int) -> Iterator[list[str]]:
    """A group's documents in pieces; a document longer than a piece is one of its own."""
    piece: list[str] = []
    filled = 0
    for file in group.files:
        for document in file.documents():
            if piece and filled + len(document) > piece_bytes:
                yield piece
                piece, filled = [], 0
            piece.append(document)
            filled += len(document)
    if piece:
        yield piece


# --- the tokenizer -----------------------------------------------------------------------------


def _tokenizer(
    source: Source,
    folder: Path,
    settings: Settings,
    given: Path | None,
    progress: Progress,
) -> Tokenizer:
    path = folder / runs.TOKENIZER
    if not path.exists():
        if given is not None:
            runs.write_file(path, given.read_bytes())
        else:
            progress("training a tokenizer", 0, 1)
            model = train_tokenizer(_sample(source, settings), vocab_size=settings.vocab_size)
            runs.write_file(path, model)
            progress("training a tokenizer", 1, 1)
    return Tokenizer(path)


def _sample(source: Source, settings: Settings) -> Iterator[str]:
    """Training documents from all files alike, up to `SAMPLE_BYTES` of text."""
    files = [file for file in source.files if file.split != "held_out"]
    for file in files:
        left = SAMPLE_BYTES / len(files)
        for document in file.documents():
            if left <= 0:
                break
            if _split_of(file.split, hash_of(document.strip()), settings) == "train":
                left -= len(document)
                yield document


# --- the work ----------------------------------------------------------------------------------


class _Work:
    """Pieces handed to worker processes, a few ahead of what they finish."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        piece_bytes: int,
        workers: int,
        progress: Progress,
        num_groups: int,
    ) -> None:
        self.folder, self.settings, self.piece_bytes = folder, settings, piece_bytes
        self.workers, self.progress = workers, progress
        self.num_groups, self.done_groups = num_groups, 0

    def run(self, groups: list[Group]) -> None:
        left = [group for group in groups if not _group_record(self.folder, group).exists()]
        self._report(len(groups) - len(left))
        if not left:
            return
        context = multiprocessing.get_context("spawn")
        arguments = (self.folder, self.settings, os.getpid())
        with ProcessPoolExecutor(self.workers, context, _start_worker, arguments) as pool:
            try:
                self._run_all(left, pool)
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _run_all(self, groups: list[Group], pool: ProcessPoolExecutor) -> None:
        running: dict[Future[None], _Group] = {}
        for group in groups:
            state = _Group(group)
            for index, piece in enumerate(_pieces(group, self.piece_bytes)):
                state.num_pieces += 1
                if _piece_record(self.folder, group.index, index).exists():
                    continue
                while len(running) >= 2 * self.workers:
                    self._collect(running)
                split = group.files[0].split
                running[pool.submit(_prepare_piece, piece, split, group.index, index)] = state
                state.num_running += 1
            state.is_read = True
            self._close_if_done(state)
        while running:
            self._collect(running)

    def _collect(self, running: "dict[Future[None], _Group]") -> None:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for job in done:
            job.result()
            state = running.pop(job)
            state.num_running -= 1
            self._close_if_done(state)

    def _close_if_done(self, state: "_Group") -> None:
        if state.is_read and not state.num_running:
            record = runs.to_json({"pieces": state.num_pieces})
            runs.write_file(_group_record(self.folder, state.group), record)
            self._report(1)

    def _report(self, more: int) -> None:
        self.done_groups += more
        self.progress("tokenising", self.done_groups, self.num_groups)


@dataclass
class _Group:
    """How far a group has come."""

    group: Group
    num_pieces: int = 0
    num_running: int = 0
    is_read: bool = False


_worker: dict[str, Any] = {}
"""What a worker process keeps between pieces."""


def _start_worker(folder: Path, settings: Settings, parent: int) -> None:
    threading.Thread(target=_end_with_parent, args=[parent], daemon=True).start()
    excluded = folder / EXCLUDED
    _worker.update(
        folder=folder,
        settings=settings,
        tokenizer=Tokenizer(folder / runs.TOKENIZER),
        excluded=np.fromfile(excluded, dtype="<u8") if excluded.exists() else np.empty(0, "<u8"),
    )


def _end_with_parent(parent: int) -> None:
    """A killed parent cannot tell its workers to stop, so they look."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def _prepare_piece(documents: list[str], split: Split | None, group: int, index: int) -> None:
    """Tokenise a piece, write its shards, then its record."""
    folder: Path = _worker["folder"]
    tokenizer: Tokenizer = _worker["tokenizer"]
    dtype = token_dtype(tokenizer.vocab_size)
    ids: dict[Split, list[np.ndarray]] = {"train": [], "held_out": []}
    hashes: dict[Split, list[int]] = {"train": [], "held_out": []}
    text_bytes: dict[Split, int] = {"train": 0, "held_out": 0}
    empty = excluded = 0
    for document in documents:
        text = document.strip()
        if not text:
            empty += 1
            continue
        digest = hash_of(text)
        if _contains(_worker["excluded"], digest):
            excluded += 1
            continue
        place = _split_of(split, digest, _worker["settings"])
        ids[place].append(np.array(tokenizer.encode(text), dtype=dtype))
        hashes[place].append(digest)
        text_bytes[place] += len(text.encode())
    shards = {
        place: write_shard(
            folder,
            f"{place}-{group:05d}-{index:03d}",
            documents=ids[place],
            hashes=hashes[place],
            text_bytes=text_bytes[place],
            dtype=dtype,
        )
        for place in ids
        if ids[place]
    }
    record = Record(empty=empty, excluded=excluded, **shards)
    runs.write_file(
        _piece_record(folder, group, index),
        runs.to_json({key: value for key, value in asdict(record).items() if value is not None}),
    )


def hash_of(text: str) -> int:
    """64 bits of a document's text: its identity, and what decides its split."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _split_of(split: Split | None, digest: int, settings: Settings) -> Split:
    if split is not None:
        return split
    return "held_out" if digest < settings.held_out_share * 2**64 else "train"


def _contains(ordered: np.ndarray, value: int) -> bool:
    at = int(np.searchsorted(ordered, np.uint64(value)))
    return at < len(ordered) and int(ordered[at]) == value


def _write_excluded(folder: Path) -> None:
    """Hashes of all training documents: what the held-out files must not contain."""
    shards = [record.train for record in _records(folder) if record.train is not None]
    runs.write_file(folder / EXCLUDED, document_hashes(folder, shards).tobytes())


# --- the end -----------------------------------------------------------------------------------


def _finish(
    folder: Path,
    source: Source,
    settings: Settings,
    tokenizer: Tokenizer,
    groups: list[Group],
) -> Manifest:
    records = list(_records(folder))
    train = tuple(record.train for record in records if record.train is not None)
    held_out = tuple(record.held_out for record in records if record.held_out is not None)
    if not train:
        raise ValueError("the source has no training document that is not empty")
    files = [{"name": file.name, "sha256": runs.sha256(file.path)} for file in source.files]
    content = hashlib.sha256("".join(f"{f['name']}\0{f['sha256']}\n" for f in files).encode())
    manifest = Manifest(
        format=FORMAT,
        source={
            "kind": source.kind,
            "content_sha256": content.hexdigest(),
            **source.facts,
            **asdict(settings),
            "files": files,
        },
        tokenizer_sha256=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        dtype=token_dtype(tokenizer.vocab_size).str,
        skipped={
            "empty": sum(record.empty for record in records),
            "held_out_also_in_training": sum(record.excluded for record in records),
        },
        train=train,
        held_out=held_out,
    )
    write_manifest(folder, manifest)
    _clean(folder)
    return manifest


def _clean(folder: Path) -> None:
    """Remove what was needed on the way; the plan last, so that a kill leaves the rest to do."""
    shutil.rmtree(folder / RECORDS, ignore_errors=True)
    (folder / EXCLUDED).unlink(missing_ok=True)
    for partial in folder.glob(".*.partial"):
        partial.unlink()
    (folder / PLAN).unlink()


def _records(folder: Path) -> Iterator[Record]:
    """The records of all pieces, in order."""
    for path in sorted((folder / RECORDS).glob("piece-*.json")):
        yield from_dict(Record, runs.read_json(path))


def _piece_record(folder: Path, group: int, index: int) -> Path:
    return folder / RECORDS / f"piece-{group:05d}-{index:03d}.json"


def _group_record(folder: Path, group: Group) -> Path:
    return folder / RECORDS / f"group-{group.index:05d}.json"
