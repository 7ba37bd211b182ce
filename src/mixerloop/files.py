"""Files written without loss: beside their place and renamed, sealed by their hashes, locked.

A file or folder appears under its final name only when it is complete.
"""

import errno
import fcntl
import glob
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

CONTENTS = "contents.json"
"""Seals a folder: the size and the sha256 of every file in it."""
CHECKPOINTS = "checkpoints"
LOCK = "lock"
LOCK_PATIENCE = 0.5  # seconds; `is_locked` holds the lock for a moment


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file beside its place and rename it there."""
    path = path.resolve()
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: exists and is not a file")
    beside = _beside(path)
    try:
        with beside.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        _sync(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def check_is_new(path: Path) -> ValueError:
    """Refuse a name that is taken; returns the refusal, for one that is taken meanwhile."""
    taken = ValueError(f"{path} already exists; choose another name or remove it")
    if path.exists() or path.is_symlink():
        raise taken
    return taken


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; it takes its name when the block ends well and disappears otherwise."""
    taken = check_is_new(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = _beside(path)
        beside.mkdir()
    except OSError as error:
        raise ValueError(f"{path}: cannot be made: {error.strerror}") from None
    try:
        yield beside
        try:
            beside.rename(path)
        except FileExistsError:
            raise taken from None
        except OSError as error:
            raise (taken if error.errno == errno.ENOTEMPTY else error) from None
        _sync(path.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def check_can_hold(folder: Path) -> None:
    """Refuse, before any work, a folder that could not be made or written to."""
    whole = folder.resolve()
    for path in (whole, *whole.parents):
        if (path / CONTENTS).exists() or path.parent.name == CHECKPOINTS:
            raise ValueError(f"{folder}: lies in a checkpoint, which holds what was sealed only")
    there = next(path for path in (whole, *whole.parents) if path.exists())
    if not there.is_dir():
        raise ValueError(f"{there}: is a file, and results go into a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"{there}: cannot be written to")


def remove_folder(path: Path) -> None:
    """Take a folder's name away at once, then its files."""
    beside = _beside(path)
    path.rename(beside)
    shutil.rmtree(beside)


def remove_leftovers(folder: Path, *, of: str | None = None) -> None:
    """Remove what a killed process had begun in a folder that nobody else is writing to.

    With `of` only what would have had this name, which nobody else may be writing.
    """
    for beside in folder.glob(".*.partial" if of is None else f".{glob.escape(of)}.*.partial"):
        shutil.rmtree(beside) if beside.is_dir() else beside.unlink()


def check_space(folder: Path, num_bytes: int) -> None:
    """Refuse to begin writing what the disk cannot hold."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise ValueError(
            f"{folder}: {num_bytes / 2**20:,.0f} MiB are to be written and the disk has "
            f"{free / 2**20:,.0f} MiB left"
        )


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Be the only process that writes to a run; the lock goes when the process does."""
    with (run / LOCK).open("a+") as file:
        patience = time.monotonic() + LOCK_PATIENCE
        while not _try_lock(file, fcntl.LOCK_EX):
            if time.monotonic() > patience:
                file.seek(0)
                owner = file.read().strip() or "another process"
                raise ValueError(f"{run}: {owner} is writing to this run")
            time.sleep(LOCK_PATIENCE / 10)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        yield


def is_locked(run: Path) -> bool:
    """Whether a process is writing to a run."""
    if not (run / LOCK).is_file():
        return False
    with (run / LOCK).open() as file:
        return not _try_lock(file, fcntl.LOCK_SH)


def _try_lock(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


def seal_folder(folder: Path) -> None:
    """Record the size and hash of every file, so that damage cannot go unnoticed."""
    files = {
        file.relative_to(folder).as_posix(): {
            "bytes": file.stat().st_size,
            "sha256": file_sha256(file),
        }
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file != folder / CONTENTS
    }
    for path in (*(folder / name for name in files), *filter(Path.is_dir, folder.rglob("*"))):
        _sync(path)
    write_file(folder / CONTENTS, json_text({"files": files}))


def check_seal(folder: Path) -> None:
    """Refuse a folder whose files are not the ones that were sealed."""
    contents = read_json(folder / CONTENTS)
    try:
        sealed = {
            name: (int(entry["bytes"]), str(entry["sha256"]))
            for name, entry in contents["files"].items()
        }
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError(f"{folder / CONTENTS}: not a list of files") from None
    for name, (size, digest) in sealed.items():
        file = folder / name
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*", name) or ".." in name.split("/"):
            raise ValueError(f"{folder / CONTENTS}: {name!r} is not the name of a file in here")
        if file.is_symlink():
            raise ValueError(f"{file}: is a link, and a checkpoint holds its files itself")
        if not file.is_file():
            raise ValueError(f"{file}: missing from the checkpoint")
        if file.stat().st_size != size:
            found = file.stat().st_size
            raise ValueError(f"{file}: damaged, {found:,} bytes instead of {size:,}")
        if file_sha256(file) != digest:
            raise ValueError(f"{file}: damaged, its sha256 is not the recorded one")
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.is_file() and name not in sealed and file != folder / CONTENTS:
            raise ValueError(f"{file}: not in the checkpoint's list of files")


def file_sha256(path: Path) -> str:
    """The hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> Any:
    """Read a JSON file; what cannot be read is named."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot read this file: {error}") from None


def json_text(value: Any) -> str:
    """JSON as we write it."""
    return json.dumps(value, indent=2) + "\n"
