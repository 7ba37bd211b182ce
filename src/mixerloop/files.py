"""Files and folders that survive a crash: written atomically, sealed by hashes, locked.

A file or folder is written under a temporary name beside its final path and then renamed, so it
appears under its final name only when it is complete.
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
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mixerloop.messages import HARMFUL
from mixerloop.parsing import from_dict

CONTENTS = "contents.json"
"""The file that seals a folder: the size and the sha256 of every other file in the folder."""
SEAL = "sha256"
"""The key of a sealed JSON file that holds the sha256 of all its other keys."""
CHECKPOINTS = "checkpoints"
LOCK = "lock"
LOCK_PATIENCE = 0.5  # seconds; `is_locked` of another process holds the lock for a moment


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file atomically; a reader sees the old content or the new, never a part."""
    path = resolved(path)
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: exists and is not a file")
    temporary = _temporary_path(path)
    try:
        with naming(path):
            with temporary.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def resolved(path: Path) -> Path:
    """The absolute path without links; raises ValueError where links form a loop."""
    try:
        path.stat()
    except OSError as error:  # Python 3.13 resolves a loop to itself, without an error
        if error.errno == errno.ELOOP:
            raise ValueError(f"{path}: a link that leads back to itself") from None
    return path.resolve()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the path that the user knows into the errors of the operating system in the block.

    An error of `write` or `fsync`, such as that of a full disk, names no file by itself.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # raised by a library; its message is all that is known
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def is_there(path: Path) -> bool:
    """Whether a path has anything, even a folder or a link that leads nowhere.

    Where a file may be missing, this test is the right one: a reader then names a damaged file.
    """
    return os.path.lexists(path)


def name_problem(path: Path | str) -> str | None:
    """Why a path cannot be the name of a new file or folder; None if it can."""
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError:  # in the locale C even an umlaut is not text
        return f"not text in {sys.getfilesystemencoding()}, which this locale has for file names"
    if HARMFUL.search(text) or "\n" in text or "\t" in text:
        return "has a control character"
    return None


def check_name(path: Path) -> None:
    """Raise unless a path can be the name of a new file or folder."""
    if (problem := name_problem(path)) is not None:
        raise ValueError(f"{path}: {problem}; choose another name")


def check_is_new(path: Path) -> None:
    """Raise if a path exists, or cannot be the name of a new folder."""
    check_name(path)
    if is_there(path):
        raise _already_exists(path)


def _already_exists(path: Path) -> ValueError:
    return ValueError(f"{path} already exists; choose another name or remove it")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; renamed to `path` when the block succeeds, removed when it raises."""
    check_is_new(path)
    temporary = _temporary_path(path)
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
        except OSError as error:
            raise ValueError(f"{path}: cannot be made: {error.strerror}") from None
        with under_final_name(temporary, path):
            yield temporary
        try:
            temporary.rename(path)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            raise _already_exists(path) from None
        _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def under_final_name(temporary: Path, path: Path) -> Iterator[None]:
    """Name the final path in errors, since the temporary folder is gone when they are read."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        name = str(error.filename or path).replace(str(temporary), str(path))
        raise OSError(error.errno, error.strerror, name) from None
    except ValueError as error:
        if str(temporary) not in str(error):
            raise
        raise ValueError(str(error).replace(str(temporary), str(path))) from None


def is_checkpoint_name(path: Path) -> bool:
    """Whether a path ends in checkpoints/step-N."""
    return path.parent.name == CHECKPOINTS and re.fullmatch(r"step-\d+", path.name) is not None


def check_can_hold(folder: Path) -> None:
    """Reject, before any work, a folder for results that could not be created or written to."""
    place = resolved(folder)
    existing = next(path for path in (place, *place.parents) if path.exists())
    if not existing.is_dir():
        raise ValueError(f"{existing}: is a file, and results go into a folder")
    for path in (place, *place.parents):
        if is_there(path / CONTENTS) or is_checkpoint_name(path):
            raise ValueError(
                f"{folder}: lies in a sealed folder, which holds only the files it was sealed with"
            )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"{existing}: cannot be written to")


def remove_folder(path: Path) -> None:
    """Remove a folder; it is renamed first, so that nothing reads a half-removed folder."""
    temporary = _temporary_path(path)
    path.rename(temporary)
    shutil.rmtree(temporary)


def remove_leftovers(folder: Path, *, of: str | None = None) -> None:
    """Remove the incomplete files and folders that a killed process has left in a folder.

    No other process may be writing to the folder. With `of`, only incomplete files and folders of
    this final name are removed, and no other process may be writing that name.
    """
    for leftover in folder.glob(".*.partial" if of is None else f".{glob.escape(of)}.*.partial"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def check_space(folder: Path, num_bytes: int) -> None:
    """Raise if the disk of a folder, which may not exist yet, has less than `num_bytes` free."""
    existing = next(path for path in (folder, *resolved(folder).parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < num_bytes:
        raise ValueError(
            f"{folder}: the disk is too full: {readable_size(num_bytes)} are to be written and "
            f"{readable_size(free)} are free"
        )


def readable_size(num_bytes: int) -> str:
    """A number of bytes in the unit that leaves one to four digits before the point."""
    size, unit = float(num_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 10_000:
            break
        size, unit = size / 1024, larger
    return f"{size:,.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:,.1f} {unit}"


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Lock a run against other writers inside the block; the lock ends with the process."""
    if (run / LOCK).exists():
        check_is_file(run / LOCK)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    with open(run / LOCK, "a+", opener=lambda path, _: os.open(path, flags, 0o644)) as file:
        deadline = time.monotonic() + LOCK_PATIENCE
        while not _try_lock(file, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                file.seek(0)
                owner = file.read().strip() or "another process"
                raise ValueError(f"{run}: {owner} is writing to this run")
            time.sleep(LOCK_PATIENCE / 10)
        with naming(run / LOCK):
            file.truncate(0)
            os.write(file.fileno(), f"process {os.getpid()} on {platform.node()}\n".encode())
        yield


class OpenFolder:
    """A folder that is known again after it was moved."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def place(self) -> Path | None:
        """Where the folder is now; None if it is gone. Only Linux knows the new place of it."""
        for path in (self._path, Path(f"/proc/self/fd/{self._descriptor}")):
            try:
                if os.path.samestat(path.stat(), os.fstat(self._descriptor)):
                    found = path if path is self._path else path.readlink()
                    return found if found.exists() else None
            except (FileNotFoundError, NotADirectoryError):
                continue
        return None

    def close(self) -> None:
        """Close the folder."""
        os.close(self._descriptor)


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
    """Wait until the content of a file, or the list of names in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


@dataclass(frozen=True, kw_only=True)
class SealedFile:
    """A file with the size and the hash it had when it was written."""

    path: Path
    num_bytes: int
    sha256: str

    def check(self) -> None:
        """Raise if the file is missing or is not as it was written."""
        self.check_size()
        if file_sha256(self.path) != self.sha256:
            raise self.damaged()

    def check_size(self) -> None:
        """Raise if the file is missing or has another size; its content is not read."""
        if not self.path.is_file():
            raise ValueError(f"{self.path}: {'not a file' if self.path.exists() else 'missing'}")
        size = self.path.stat().st_size
        if size != self.num_bytes:
            raise ValueError(f"{self.path}: damaged, {size:,} bytes instead of {self.num_bytes:,}")

    def damaged(self) -> ValueError:
        """The error of a file whose hash is not the recorded hash."""
        return ValueError(f"{self.path}: damaged, its sha256 is not the recorded one")


def seal_folder(folder: Path, names: Collection[str] | None = None) -> None:
    """Write the size and hash of every file into `contents.json`; with `names`, of these only."""
    if names is None:
        names = sorted(
            file.relative_to(folder).as_posix()
            for file in folder.rglob("*")
            if file.is_file() and file != folder / CONTENTS
        )
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": file_sha256(folder / name)}
        for name in names
    }
    for path in (*(folder / name for name in files), *filter(Path.is_dir, folder.rglob("*"))):
        _sync(path)
    write_sealed(folder / CONTENTS, {"files": files})


def sealed_files(folder: Path) -> dict[str, SealedFile]:
    """The files that `contents.json` lists, by name; their content is not checked."""
    path = folder / CONTENTS
    contents = read_sealed(path, may_lack_seal=lambda _: True)  # version 0.1.0 wrote none
    try:
        entries = from_dict(_Contents, contents).files
    except ValueError as error:
        raise ValueError(f"{path}: not a list of files: {error}") from None
    for name in entries:
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*", name) or ".." in name.split("/"):
            raise ValueError(f"{path}: {name!r} is not the name of a file in here")
    return {
        name: SealedFile(path=folder / name, num_bytes=entry.bytes, sha256=entry.sha256)
        for name, entry in entries.items()
    }


@dataclass(frozen=True, kw_only=True)
class _Entry:
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class _Contents:
    """The content of `contents.json`."""

    files: dict[str, _Entry]


def check_seal(folder: Path) -> None:
    """Raise if files of a sealed folder are changed, missing, links or additional."""
    sealed = sealed_files(folder)
    for file in sealed.values():
        if file.path.is_symlink():
            raise ValueError(f"{file.path}: is a link, and a checkpoint holds its files itself")
        if not file.path.is_file():
            raise ValueError(f"{file.path}: missing from the checkpoint")
        file.check()
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.is_file() and name not in sealed and file != folder / CONTENTS:
            raise ValueError(f"{file}: not in the checkpoint's list of files")


def check_is_file(path: Path) -> None:
    """Raise unless a path is a regular file: a FIFO or a device may never end."""
    if not path.is_file():
        problem = "not a file, or a link to none" if is_there(path) else "there is no such file"
        raise ValueError(f"{path}: {problem}")


def read_file(path: Path) -> bytes:
    """The content of a regular file; every problem is a ValueError that names the file."""
    try:
        check_is_file(path)
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None


def file_sha256(path: Path) -> str:
    """The sha256 of a file's content in hexadecimal."""
    check_is_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> Any:
    """Read a JSON file; an error is a ValueError that names the file."""
    return _read_text_and_json(path)[1]


def _read_text_and_json(path: Path) -> tuple[str, Any]:
    content = read_file(path)
    try:
        text = content.decode()
        return text, json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot read this file: {error}") from None


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object with the sha256 of its content, which `read_sealed` checks."""
    assert SEAL not in value
    write_file(path, json_text({**value, SEAL: _content_sha256(value)}))


def read_sealed(
    path: Path, *, may_lack_seal: Callable[[dict[str, Any]], bool] | None = None
) -> dict[str, Any]:
    """Read a JSON object that `write_sealed` wrote; raises if a single value was changed.

    `may_lack_seal` is asked whether a value without a seal is accepted, since older versions wrote
    some files without seals.
    """
    text, value = _read_text_and_json(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path}: damaged, it is not a JSON object")
    if SEAL not in value:
        if may_lack_seal is not None and may_lack_seal(value):
            return value
        raise ValueError(f"{path}: damaged, or written by an older version: it has no {SEAL}")
    if json_text(value) != text or value.pop(SEAL) != _content_sha256(value):
        raise ValueError(f"{path}: damaged, its content does not match its {SEAL}")
    return value


def _content_sha256(value: dict[str, Any]) -> str:
    return hashlib.sha256(json_text(value).encode()).hexdigest()


def json_text(value: Any) -> str:
    """JSON as all files of this package have it: indented, with a newline at the end."""
    return json.dumps(value, indent=2) + "\n"
