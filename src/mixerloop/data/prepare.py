"""From a source to verified shards: all cores, one result, whatever happens on the way.

Files are taken in groups and their documents in pieces of a fixed size of text. A piece becomes a
shard per split, and a small record once its shards are on disk. Started again, preparation reads
the records, skips what is done and does the rest; the bytes that come out depend neither on
interruptions nor on the number of workers.
"""

import fcntl
import hashlib
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mixerloop import runs
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
from mixerloop.files import file_sha256, json_text, read_json, write_file
from mixerloop.parsing import from_dict

PLAN = "preparing.json"
RECORDS = "records"
EXCLUDED = "excluded.docs"
SMALLEST_PIECE, LARGEST_PIECE = 2**20, 2**26  # characters of text in a shard
PIECES = 64  # about as many as a source is cut into, within those bounds
SAMPLE_CHARACTERS = 2**24  # of text that a tokenizer is trained on
WORD_MARK = "\u2581"  # SentencePiece's own sign for a space, which it cannot tell from one

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What preparation does with a source; None for what the source or a tokenizer decides."""

    held_out_share: float | None = None
    """Share of documents held out by their hash, where files do not decide."""
    vocab_size: int | None = None
    """Size of the tokenizer to train, where none is given."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if self.held_out_share is not None and not 0 <= self.held_out_share < 1:
            raise ValueError(f"held-out share must be from 0 to 1, got {self.held_out_share}")
        if self.vocab_size is not None and not 260 <= self.vocab_size <= 2**24:
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
    check_free(folder)
    with _alone_in(folder):
        plan = _plan(source, settings, tokenizer_path)
        if (folder / PLAN).exists():
            plan = _same_plan(folder, plan)
        if not (folder / MANIFEST).exists():
            tokenizer = _tokenizer(source, folder, settings, tokenizer_path, plan, progress)
            groups = _groups(source, plan)
            _work(folder, settings, plan, groups, workers, progress)
            _finish(folder, source, settings, tokenizer, groups)
        _clean(folder)
        return read_manifest(folder)


def check_free(folder: Path) -> None:
    """Refuse a folder that is finished, or that holds something else."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: exists and is not a folder")
    if (folder / PLAN).exists():
        return
    if (folder / MANIFEST).exists():
        raise ValueError(f"{folder}: already prepared; choose another folder or remove it")
    if folder.exists() and any(not path.name.endswith(".partial") for path in folder.iterdir()):
        raise ValueError(f"{folder}: is not empty; choose another folder")


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder itself; it goes with the process, however that ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ValueError(f"{folder}: cannot be made: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ValueError(f"{folder}: is being prepared by another process") from None
    finally:
        os.close(descriptor)


# --- the plan ------------------------------------------------------------------------------------


def _plan(source: Source, settings: Settings, tokenizer_path: Path | None) -> dict[str, Any]:
    """Everything the result depends on, but for the content of the files."""
    for file in source.files:
        try:
            file.name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{file.path!r}: the file's name is not UTF-8; rename it") from None
    sizes = [file.path.stat().st_size for file in source.files]
    piece = min(max(sum(sizes) // PIECES, SMALLEST_PIECE), LARGEST_PIECE)
    return {
        "format": FORMAT,
        "source": source.kind,
        "files": [[file.name, file.split] for file in source.files],
        "settings": asdict(settings),
        "tokenizer": None if tokenizer_path is None else Tokenizer(tokenizer_path).fingerprint,
        "piece_characters": piece,
        "group_sizes": _group_sizes(source, sizes, piece),
    }


def _same_plan(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """The plan a folder was begun with; how it cuts the source stays, even if files are mended."""
    begun = read_json(folder / PLAN)
    cut = {"piece_characters", "group_sizes"}
    if not isinstance(begun, dict) or any(begun.get(k) != plan[k] for k in plan.keys() - cut):
        raise ValueError(f"{folder}: was begun with other files or settings; remove it first")
    return begun


def _group_sizes(source: Source, sizes: list[int], piece: int) -> list[int]:
    """How many files go together: small ones until they fill a piece, large ones alone."""
    counts: list[int] = []
    filled, split = 0, None
    for file, size in zip(source.files, sizes, strict=True):
        if not counts or filled + size > piece or split != file.split:
            counts.append(0)
            filled = 0
        counts[-1] += 1
        filled, split = filled + size, file.split
    return counts


def _groups(source: Source, plan: dict[str, Any]) -> list[Group]:
    groups, at = [], 0
    for index, count in enumerate(plan["group_sizes"]):
        groups.append(Group(index, source.files[at : at + count]))
        at += count
    return groups


def _pieces(group: Group, piece_characters: int) -> Iterator[list[str]]:
    """A group's documents in pieces; a document longer than a piece is one of its own."""
    piece: list[str] = []
    filled = 0
    for file in group.files:
        for document in file.documents():
            if piece and filled + len(document) > piece_characters:
                yield piece
                piece, filled = [], 0
            piece.append(document)
            filled += len(document)
    if piece:
        yield piece


# --- the tokenizer -------------------------------------------------------------------------------


def _tokenizer(
    source: Source,
    folder: Path,
    settings: Settings,
    given: Path | None,
    plan: dict[str, Any],
    progress: Progress,
) -> Tokenizer:
    """The folder's tokenizer; one that cannot be trained leaves no plan behind."""
    path = folder / runs.TOKENIZER
    if not ((folder / PLAN).exists() and path.exists()):
        if given is not None:
            model = given.read_bytes()
        else:
            assert settings.vocab_size is not None
            progress("training a tokenizer", 0, 1)
            model = train_tokenizer(_sample(source, settings), vocab_size=settings.vocab_size)
            progress("training a tokenizer", 1, 1)
        write_file(folder / PLAN, json_text(plan))
        write_file(path, model)
    return Tokenizer(path)


def _sample(source: Source, settings: Settings) -> Iterator[str]:
    """Training text from all files alike; what small files leave of their share, large ones get."""
    files = [file for file in source.files if file.split != "held_out"]
    files.sort(key=lambda file: file.path.stat().st_size)
    left = SAMPLE_CHARACTERS
    for index, file in enumerate(files):
        share = left // (len(files) - index)
        for document in file.documents():
            if share <= 0:
                break
            if _split_of(file.split, hash_of(canonical(document)), settings) == "train":
                yield document[:share]
                left -= min(len(document), share)
                share -= len(document)


# --- the work ----------------------------------------------------------------------------------


def _work(
    folder: Path,
    settings: Settings,
    plan: dict[str, Any],
    groups: list[Group],
    workers: int,
    progress: Progress,
) -> None:
    """Training files first: what they hold is kept out of the held-out ones."""
    (folder / RECORDS).mkdir(exist_ok=True)
    training = [group for group in groups if group.files[0].split != "held_out"]
    holding_out = [group for group in groups if group.files[0].split == "held_out"]
    work = _Work(folder, settings, plan["piece_characters"], workers, progress, len(groups))
    work.run(training)
    if holding_out:
        _write_excluded(folder, training)
        work.run(holding_out)


class _Work:
    """Pieces handed to worker processes, a few ahead of what they finish."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        piece_characters: int,
        workers: int,
        progress: Progress,
        num_groups: int,
    ) -> None:
        self.folder, self.settings, self.piece_characters = folder, settings, piece_characters
        self.workers, self.progress = workers, progress
        self.num_groups, self.done_groups = num_groups, 0

    def run(self, groups: list[Group]) -> None:
        left = [group for group in groups if not self._is_done(group)]
        self._report(len(groups) - len(left))
        if not left:
            return
        context = multiprocessing.get_context("spawn")
        arguments = (self.folder, self.settings, os.getpid())
        with ProcessPoolExecutor(self.workers, context, _start_worker, arguments) as pool:
            try:
                self._run_all(left, pool)
            except BrokenProcessPool:
                raise ValueError(
                    "a worker was killed, perhaps for want of memory; run the same command to go "
                    "on, with fewer workers if need be"
                ) from None
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _is_done(self, group: Group) -> bool:
        """Whether a group is finished; one that depends on what has changed starts again.

        It depends on its files and, held out, on what training holds.
        """
        begun, done = _begun_record(self.folder, group), _done_record(self.folder, group)
        depends_on = {"sha256": [file_sha256(file.path) for file in group.files]}
        if group.files[0].split == "held_out":
            depends_on["excluded"] = [file_sha256(self.folder / EXCLUDED)]
        if begun.exists() and read_json(begun) != depends_on:
            done.unlink(missing_ok=True)
            for record in (self.folder / RECORDS).glob(f"piece-{group.index}-*.json"):
                record.unlink()
            begun.unlink()
        if not begun.exists():
            write_file(begun, json_text(depends_on))
        return done.exists()

    def _run_all(self, groups: list[Group], pool: ProcessPoolExecutor) -> None:
        running: dict[Future[None], _Progress] = {}
        for group in groups:
            state = _Progress(group)
            for index, piece in enumerate(_pieces(group, self.piece_characters)):
                state.num_pieces += 1
                if _piece_record(self.folder, group, index).exists():
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

    def _collect(self, running: "dict[Future[None], _Progress]") -> None:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for job in done:
            job.result()
            state = running.pop(job)
            state.num_running -= 1
            self._close_if_done(state)

    def _close_if_done(self, state: "_Progress") -> None:
        if state.is_read and not state.num_running:
            record = json_text({"pieces": state.num_pieces})
            write_file(_done_record(self.folder, state.group), record)
            self._report(1)

    def _report(self, more: int) -> None:
        self.done_groups += more
        self.progress("tokenising", self.done_groups, self.num_groups)


@dataclass
class _Progress:
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
        text = canonical(document)
        if not text:
            empty += 1
            continue
        digest = hash_of(text)
        if split == "held_out" and _contains(_worker["excluded"], digest):
            excluded += 1
            continue
        place = _split_of(split, digest, _worker["settings"])
        ids[place].append(np.array(tokenizer.encode(text), dtype=dtype))
        hashes[place].append(digest)
        text_bytes[place] += len(text.encode())
    shards = {
        place: write_shard(
            folder,
            f"{place}-{group:05d}-{index:05d}",
            documents=ids[place],
            hashes=hashes[place],
            text_bytes=text_bytes[place],
            dtype=dtype,
        )
        for place in ids
        if ids[place]
    }
    record = Record(empty=empty, excluded=excluded, **shards)
    write_file(
        folder / RECORDS / _piece_name(group, index),
        json_text({key: value for key, value in asdict(record).items() if value is not None}),
    )


def canonical(document: str) -> str:
    """The text a document stands for: stripped, the word mark read as the space it becomes."""
    return document.replace(WORD_MARK, " ").strip()


def hash_of(text: str) -> int:
    """64 bits of a document's text: its identity, and what decides its split."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _split_of(split: Split | None, digest: int, settings: Settings) -> Split:
    if split is not None:
        return split
    return "held_out" if digest < (settings.held_out_share or 0.0) * 2**64 else "train"


def _contains(ordered: np.ndarray, value: int) -> bool:
    at = int(np.searchsorted(ordered, np.uint64(value)))
    return at < len(ordered) and int(ordered[at]) == value


def _write_excluded(folder: Path, training: list[Group]) -> None:
    """Hashes of all training documents: what the held-out files must not contain."""
    shards = [record.train for record in _records(folder, training) if record.train is not None]
    write_file(folder / EXCLUDED, document_hashes(folder, shards).tobytes())


# --- the end -------------------------------------------------------------------------------------


def _finish(
    folder: Path,
    source: Source,
    settings: Settings,
    tokenizer: Tokenizer,
    groups: list[Group],
) -> None:
    records = _records(folder, groups)
    train = tuple(record.train for record in records if record.train is not None)
    held_out = tuple(record.held_out for record in records if record.held_out is not None)
    if not train:
        raise ValueError("the source has no training document that is not empty")
    hashes = [h for g in groups for h in read_json(_begun_record(folder, g))["sha256"]]
    files = [{"name": f.name, "sha256": h} for f, h in zip(source.files, hashes, strict=True)]
    content = hashlib.sha256("".join(f"{f['name']}\0{f['sha256']}\n" for f in files).encode())
    used = {key: value for key, value in asdict(settings).items() if value is not None}
    manifest = Manifest(
        format=FORMAT,
        source={
            "kind": source.kind,
            "content_sha256": content.hexdigest(),
            **source.facts,
            **used,
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


def _clean(folder: Path) -> None:
    """Remove what was needed on the way; the plan last, so that a kill leaves the rest to do."""
    shutil.rmtree(folder / RECORDS, ignore_errors=True)
    (folder / EXCLUDED).unlink(missing_ok=True)
    for partial in folder.glob(".*.partial"):
        partial.unlink()
    manifest = read_manifest(folder)
    kept = {shard.name for shard in (*manifest.train, *manifest.held_out)}
    for path in (*folder.glob("*.tokens"), *folder.glob("*.docs")):
        if path.stem not in kept:  # of a file that was changed before it was finished
            path.unlink()
    (folder / PLAN).unlink()


def _records(folder: Path, groups: list[Group]) -> list[Record]:
    """The records of all pieces of finished groups, in order."""
    return [
        from_dict(Record, read_json(_piece_record(folder, group, index)))
        for group in groups
        for index in range(read_json(_done_record(folder, group))["pieces"])
    ]


def _piece_name(group: int, index: int) -> str:
    return f"piece-{group}-{index}.json"


def _piece_record(folder: Path, group: Group, index: int) -> Path:
    return folder / RECORDS / _piece_name(group.index, index)


def _begun_record(folder: Path, group: Group) -> Path:
    return folder / RECORDS / f"begun-{group.index}.json"


def _done_record(folder: Path, group: Group) -> Path:
    return folder / RECORDS / f"done-{group.index}.json"
