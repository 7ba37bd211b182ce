"""From a source to verified shards, on all cores, resumable at any moment.

Files are read in groups, and the documents of a group in pieces of a fixed size of text. A piece
becomes a shard per split, and a small record once its shards are on disk. A resumed preparation
reads the records and prepares the missing pieces. The bytes of the result depend neither on
interruptions nor on the number of workers.
"""

import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mixerloop import runs
from mixerloop.data.sentencepiece_tokenizer import train_tokenizer
from mixerloop.data.shards import (
    FORMAT,
    MANIFEST,
    Manifest,
    Shard,
    document_hashes,
    read_manifest,
    seal_manifest,
    token_dtype,
    write_manifest,
    write_shard,
)
from mixerloop.data.sources import Source, SourceFile, Split
from mixerloop.data.splitting import Settings, canonical, documents_of, hash_of, split_of
from mixerloop.data.tokenizer import Tokenizer
from mixerloop.data.tokenizer_files import open_tokenizer, tokenizer_in
from mixerloop.files import file_sha256, is_there, read_sealed, write_file, write_sealed
from mixerloop.parsing import from_dict

PLAN = "preparing.json"
RECORDS = "records"
TOKENIZER_RECORD = "tokenizer.json"
EXCLUDED = "excluded.docs"
SMALLEST_PIECE, LARGEST_PIECE = 2**20, 2**26  # characters of text in a shard
PIECES = 64  # the number of pieces to aim for, within those bounds
SAMPLE_CHARACTERS = 2**24  # of training text for a tokenizer

Progress = Callable[[str, int, int], None]
"""A function that is called with the name of the work, the units done, and all units."""


@dataclass(frozen=True)
class Group:
    """Files that are read together; all have the same split."""

    index: int
    files: list[SourceFile]


@dataclass(frozen=True, kw_only=True)
class Record:
    """The shards and the skipped documents of a finished piece."""

    empty: int
    """Documents without text."""
    excluded: int
    """Held-out documents that are also training documents."""
    train: Shard | None = None
    held_out: Shard | None = None


def prepare(
    source: Source,
    folder: Path,
    *,
    settings: Settings,
    given: Tokenizer | None,
    workers: int,
    progress: Progress,
) -> Manifest:
    """Prepare a source into a folder, or resume a preparation that was stopped there.

    Without a `given` tokenizer, a tokenizer is trained on the source.
    """
    if not source.files:
        raise ValueError("the source has no files")
    check_free(folder)
    with _alone_in(folder):
        plan = _plan(source, settings, given)
        if (folder / PLAN).exists():
            plan = _same_plan(folder, plan)
        if not (folder / MANIFEST).exists():
            tokenizer = _tokenizer(source, folder, settings, given, plan, progress)
            groups = _groups(source, plan)
            _work(folder, settings, plan, tokenizer, groups, workers, progress)
            _finish(folder, source, settings, tokenizer, groups)
        seal_manifest(folder)
        _clean(folder)
        return read_manifest(folder)


def check_free(folder: Path) -> None:
    """Reject a folder that is already prepared, or that holds other files."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: exists and is not a folder")
    if (folder / PLAN).exists():
        return
    if (folder / MANIFEST).exists():
        raise ValueError(f"{folder}: already prepared; choose another folder or remove it")
    if (folder / RECORDS).exists():
        raise ValueError(
            f"{folder / PLAN}: missing, so the preparation cannot be resumed; remove {folder}"
        )
    if folder.exists() and any(not path.name.endswith(".partial") for path in folder.iterdir()):
        raise ValueError(f"{folder}: is not empty; choose another folder")


def is_unprepared(folder: Path) -> bool:
    """Whether a folder is missing, or holds only what a stopped preparation has left."""
    if not is_there(folder) or (folder / PLAN).exists():
        return True
    return folder.is_dir() and all(path.name.endswith(".partial") for path in folder.iterdir())


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder itself; the lock ends with the process, even when it is killed."""
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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything the result depends on, except the content of the files."""

    format: str
    source: str
    files: tuple[tuple[str, Split | None], ...]
    """The name and the split of each file."""
    settings: Settings
    tokenizer: str | None
    """The fingerprint of a given tokenizer."""
    piece_characters: int
    group_sizes: tuple[int, ...]
    """Files of each group."""

    def table(self) -> dict[str, Any]:
        """The content of the plan's file, with lists as JSON has them."""
        return json.loads(json.dumps(asdict(self)))


def _plan(source: Source, settings: Settings, given: Tokenizer | None) -> Plan:
    for file in source.files:
        try:
            file.name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{file.path!r}: the file's name is not UTF-8; rename it") from None
    sizes = [file.path.stat().st_size for file in source.files]
    piece = min(max(sum(sizes) // PIECES, SMALLEST_PIECE), LARGEST_PIECE)
    return Plan(
        format=FORMAT,
        source=source.kind,
        files=tuple((file.name, file.split) for file in source.files),
        settings=settings,
        tokenizer=None if given is None else given.fingerprint,
        piece_characters=piece,
        group_sizes=tuple(_group_sizes(source, sizes, piece)),
    )


def _same_plan(folder: Path, plan: Plan) -> Plan:
    """The plan of a stopped preparation; its pieces and groups stay, even if files changed."""
    begun, now = read_sealed(folder / PLAN), plan.table()
    sizes = {"piece_characters", "group_sizes"}
    if any(begun.get(key) != now[key] for key in now.keys() - sizes):
        raise ValueError(f"{folder}: was begun with other files or settings; remove it first")
    return replace(
        plan,
        piece_characters=begun["piece_characters"],
        group_sizes=tuple(begun["group_sizes"]),
    )


def _group_sizes(source: Source, sizes: list[int], piece: int) -> list[int]:
    """The number of files in each group: small files share a group, a large file has its own."""
    counts: list[int] = []
    filled, split = 0, None
    for file, size in zip(source.files, sizes, strict=True):
        if not counts or filled + size > piece or split != file.split:
            counts.append(0)
            filled = 0
        counts[-1] += 1
        filled, split = filled + size, file.split
    return counts


def _groups(source: Source, plan: Plan) -> list[Group]:
    groups, at = [], 0
    for index, count in enumerate(plan.group_sizes):
        groups.append(Group(index, source.files[at : at + count]))
        at += count
    return groups


def _pieces(group: Group, piece_characters: int) -> Iterator[list[str]]:
    """A group's documents in pieces; a document longer than a piece is a piece by itself."""
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


def _documents(texts: Iterable[str], split: Split | None, settings: Settings) -> Iterator[str]:
    """The documents of texts of a source: each text as a whole, or its blocks."""
    return (document for text in texts for document in documents_of(text, split, settings))


# --- the tokenizer -------------------------------------------------------------------------------


def _tokenizer(
    source: Source,
    folder: Path,
    settings: Settings,
    given: Tokenizer | None,
    plan: Plan,
    progress: Progress,
) -> Tokenizer:
    """The folder's tokenizer; the plan is written only after a tokenizer was read or trained."""
    left = _left_tokenizer(folder)
    if left is not None:
        return left
    files = _trained(source, settings, progress) if given is None else given.files
    write_sealed(folder / PLAN, plan.table())
    for name, content in files.items():
        write_file(folder / name, content)
    (folder / RECORDS).mkdir(exist_ok=True)
    tokenizer = open_tokenizer(folder)
    write_sealed(folder / RECORDS / TOKENIZER_RECORD, {"model": tokenizer.fingerprint})
    return tokenizer


def _left_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer that a stopped preparation left, if it is the recorded one."""
    recorded = _read_record(folder / RECORDS / TOKENIZER_RECORD)
    if recorded is None:
        return None
    try:
        tokenizer = tokenizer_in(folder)
    except ValueError:
        return None  # damaged, and written again
    has_recorded = tokenizer is not None and tokenizer.fingerprint == recorded.get("model")
    return tokenizer if has_recorded else None


def _trained(source: Source, settings: Settings, progress: Progress) -> dict[str, bytes]:
    """The file of a tokenizer that is trained on the source."""
    assert settings.vocab_size is not None
    progress("training a tokenizer", 0, 1)
    model = train_tokenizer(_sample(source, settings), vocab_size=settings.vocab_size)
    progress("training a tokenizer", 1, 1)
    return {runs.SENTENCEPIECE_MODEL: model}


def _sample(source: Source, settings: Settings) -> Iterator[str]:
    """Training text in equal shares from all files; larger files get unused shares."""
    files = [file for file in source.files if file.split != "held_out"]
    files.sort(key=lambda file: file.path.stat().st_size)
    left = SAMPLE_CHARACTERS
    for index, file in enumerate(files):
        share = left // (len(files) - index)
        for document in _documents(file.documents(), file.split, settings):
            if share <= 0:
                break
            if split_of(file.split, hash_of(canonical(document)), settings) == "train":
                yield document[:share]
                left -= min(len(document), share)
                share -= len(document)


# --- the work ----------------------------------------------------------------------------------


def _work(
    folder: Path,
    settings: Settings,
    plan: Plan,
    tokenizer: Tokenizer,
    groups: list[Group],
    workers: int,
    progress: Progress,
) -> None:
    """Prepare training files first: held-out files must not contain their documents."""
    training = [group for group in groups if group.files[0].split != "held_out"]
    holding_out = [group for group in groups if group.files[0].split == "held_out"]
    pieces = plan.piece_characters
    work = _Work(folder, settings, tokenizer, pieces, workers, progress, len(groups))
    work.run(training)
    if holding_out:
        _write_excluded(folder, training)
        work.run(holding_out)


class _Work:
    """Gives pieces to worker processes, at most two per worker at a time."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        tokenizer: Tokenizer,
        piece_characters: int,
        workers: int,
        progress: Progress,
        num_groups: int,
    ) -> None:
        self.folder, self.settings, self.tokenizer = folder, settings, tokenizer
        self.piece_characters = piece_characters
        self.workers, self.progress = workers, progress
        self.num_groups, self.done_groups = num_groups, 0

    def run(self, groups: list[Group]) -> None:
        left = [group for group in groups if not self._is_done(group)]
        self._report(len(groups) - len(left))
        if not left:
            return
        context = multiprocessing.get_context("spawn")
        arguments = (self.folder, self.settings, os.getpid())
        with _without_terminal_signals():  # making the pool starts a process that tracks semaphores
            pool = ProcessPoolExecutor(self.workers, context, _start_worker, arguments)
        with pool:
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
        """Whether a group is finished; a group whose files have changed starts again.

        A held-out group also starts again when the training documents have changed.
        """
        begun, done = _begun_record(self.folder, group), _done_record(self.folder, group)
        depends_on = {
            "files": [file_sha256(file.path) for file in group.files],
            "tokenizer": self.tokenizer.fingerprint,
        }
        if group.files[0].split == "held_out":
            depends_on["excluded"] = file_sha256(self.folder / EXCLUDED)
        pieces = list((self.folder / RECORDS).glob(f"piece-{group.index}-*.json"))
        if _read_record(begun) != depends_on:
            for record in (done, *pieces):
                record.unlink(missing_ok=True)
            write_sealed(begun, depends_on)
            return False
        unsound = [path for path in pieces if not self._is_sound(path)]
        for record in unsound:
            record.unlink()
        finished = _read_record(done)
        is_whole = finished is not None and len(pieces) - len(unsound) == finished.get("pieces")
        if not is_whole:
            done.unlink(missing_ok=True)
        return is_whole

    def _is_sound(self, record: Path) -> bool:
        """Whether a piece that an earlier session has made is still as its record says."""
        dtype = token_dtype(self.tokenizer.vocab_size).str
        try:
            piece = from_dict(Record, read_sealed(record))
            for shard in (piece.train, piece.held_out):
                if shard is not None:
                    shard.tokens_file(self.folder, dtype).check()
                    shard.docs_file(self.folder).check()
        except ValueError:
            return False
        return True

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
                with _without_terminal_signals():
                    job = pool.submit(_prepare_piece, piece, split, group.index, index)
                running[job] = state
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
            write_sealed(_done_record(self.folder, state.group), {"pieces": state.num_pieces})
            self._report(1)

    def _report(self, more: int) -> None:
        self.done_groups += more
        self.progress("tokenising", self.done_groups, self.num_groups)


@dataclass
class _Progress:
    """How many pieces of a group were read and are being prepared."""

    group: Group
    num_pieces: int = 0
    num_running: int = 0
    is_read: bool = False


@dataclass(frozen=True, kw_only=True)
class Worker:
    """Tokenises pieces in a process of its own."""

    folder: Path
    settings: Settings
    tokenizer: Tokenizer
    excluded: np.ndarray
    """Sorted hashes of the documents that held-out files must not contain."""

    def prepare(self, documents: list[str], split: Split | None, group: int, index: int) -> None:
        """Tokenise a piece, write its shards, then its record."""
        dtype = token_dtype(self.tokenizer.vocab_size)
        ids: dict[Split, list[np.ndarray]] = {"train": [], "held_out": []}
        hashes: dict[Split, list[int]] = {"train": [], "held_out": []}
        text_bytes: dict[Split, int] = {"train": 0, "held_out": 0}
        empty = excluded = 0
        for document in _documents(documents, split, self.settings):
            text = canonical(document)
            if not text:
                empty += 1
                continue
            digest = hash_of(text)
            if split == "held_out" and _contains(self.excluded, digest):
                excluded += 1
                continue
            place = split_of(split, digest, self.settings)
            ids[place].append(np.array(self.tokenizer.encode(text), dtype=dtype))
            hashes[place].append(digest)
            text_bytes[place] += len(text.encode())
        shards = {
            place: write_shard(
                self.folder,
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
        write_sealed(
            self.folder / RECORDS / _piece_name(group, index),
            {key: value for key, value in asdict(record).items() if value is not None},
        )


_this_worker: Worker | None = None
"""The worker of this process; None in the parent process."""


def _start_worker(folder: Path, settings: Settings, parent: int) -> None:
    global _this_worker
    threading.Thread(target=_end_with_parent, args=[parent], daemon=True).start()
    excluded = folder / EXCLUDED
    _this_worker = Worker(
        folder=folder,
        settings=settings,
        tokenizer=open_tokenizer(folder),
        excluded=np.fromfile(excluded, dtype="<u8") if excluded.exists() else np.empty(0, "<u8"),
    )


@contextmanager
def _without_terminal_signals() -> Iterator[None]:
    """Start processes that Ctrl-C and a closed terminal do not reach; they end with the parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent(parent: int) -> None:
    """End this worker when its parent is gone: a killed parent cannot stop its workers."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def _prepare_piece(documents: list[str], split: Split | None, group: int, index: int) -> None:
    assert _this_worker is not None
    _this_worker.prepare(documents, split, group, index)


def _contains(ordered: np.ndarray, value: int) -> bool:
    at = int(np.searchsorted(ordered, np.uint64(value)))
    return at < len(ordered) and int(ordered[at]) == value


def _write_excluded(folder: Path, training: list[Group]) -> None:
    """Write the hashes of all training documents, which held-out files must not contain."""
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
    if not held_out and settings.held_out_share != 0:
        raise ValueError(_nothing_held_out(folder, settings))
    hashes = [
        digest for group in groups for digest in read_sealed(_begun_record(folder, group))["files"]
    ]
    files = [
        {"name": file.name, "sha256": digest}
        for file, digest in zip(source.files, hashes, strict=True)
    ]
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


def _nothing_held_out(folder: Path, settings: Settings) -> str:
    if settings.held_out_share is None:
        reason = "every held-out document is empty or also in training; hold out other files"
    else:
        reason = f"a share of {settings.held_out_share} holds out no document; give a larger one"
    return f"{reason}, and remove {folder} first"


def _clean(folder: Path) -> None:
    """Remove records and unused shards; the plan goes last, so that a kill can be resumed."""
    shutil.rmtree(folder / RECORDS, ignore_errors=True)
    (folder / EXCLUDED).unlink(missing_ok=True)
    for partial in folder.glob(".*.partial"):
        partial.unlink()
    manifest = read_manifest(folder)
    names = {shard.name for shard in (*manifest.train, *manifest.held_out)}
    for path in (*folder.glob("*.tokens"), *folder.glob("*.docs")):
        if path.stem not in names:  # the shard of an earlier content of a changed file
            path.unlink()
    (folder / PLAN).unlink()


def _records(folder: Path, groups: list[Group]) -> list[Record]:
    """The records of all pieces of finished groups, in order."""
    return [
        from_dict(Record, read_sealed(_piece_record(folder, group, index)))
        for group in groups
        for index in range(read_sealed(_done_record(folder, group))["pieces"])
    ]


def _read_record(path: Path) -> dict[str, Any] | None:
    """A record; None if it is missing or damaged, since the work it records can be done again."""
    try:
        return read_sealed(path)
    except ValueError:
        return None


def _piece_name(group: int, index: int) -> str:
    return f"piece-{group}-{index}.json"


def _piece_record(folder: Path, group: Group, index: int) -> Path:
    return folder / RECORDS / _piece_name(group.index, index)


def _begun_record(folder: Path, group: Group) -> Path:
    return folder / RECORDS / f"begun-{group.index}.json"


def _done_record(folder: Path, group: Group) -> Path:
    return folder / RECORDS / f"done-{group.index}.json"
