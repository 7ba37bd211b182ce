"""Results in files: one JSON file for each measure, and the scores of each unit beside it.

A result file is sealed: it has the sha256 of its own content and of its details. Reading gives what
was written, or an error that names the file and the command that measures again.
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from mixerloop import runs
from mixerloop.config import Documents
from mixerloop.files import (
    CHECKPOINTS,
    SEAL,
    check_space,
    file_sha256,
    is_there,
    json_text,
    read_json,
    read_sealed,
    write_file,
    write_sealed,
)
from mixerloop.measures import Measure, measure_of
from mixerloop.ownership import check_replaceable, drop_link
from mixerloop.parsing import one_line
from mixerloop.results import Result, decode, encode, reject_non_finite

T = TypeVar("T")

DETAILS_SEAL = "details_sha256"
"""The key of a result file that holds the sha256 of each of its detail files, by name."""
UNFINISHED = "unfinished"
"""The only key of a result file while its details are being written."""
BEGINNINGS = (b'{\n  "checkpoint": ', b'{\n  "unfinished": ')
"""The beginnings of all result files."""
NO_FILES: Mapping[str, str] = MappingProxyType({})


def write_result(
    folder: Path,
    result: Result,
    *,
    details: str | None = None,
    detail_files: Mapping[str, str] = NO_FILES,
    overwrite: bool = False,
) -> Path:
    """Write a result to the file of its measure in a folder; returns the file.

    `details` is the content of the measure's detail file. `detail_files` has the sha256 of each
    detail file that exists already, by its path from `folder`. A result file is never beside the
    details of another result: it says that it is unfinished until the details are written.
    `overwrite` also replaces files that this program did not write.
    """
    measure = measure_of(type(result))
    check_can_write(folder, measure, overwrite=overwrite)
    path = folder / measure.file
    try:
        reject_non_finite(result)
    except ValueError as error:
        raise ValueError(f"{path}: not written: {error}") from None
    encoded = encode(result)
    folder.mkdir(parents=True, exist_ok=True)
    num_bytes = len(json_text(encoded)) + len((details or "").encode())
    check_space(folder, num_bytes)  # the old result is replaced below, before the details are there
    drop_link(path)
    if details is not None:
        file = measure.details_in(folder)
        drop_link(file)
        write_sealed(path, {UNFINISHED: measure.name})
        write_file(file, details)
        detail_files = {file.name: hashlib.sha256(details.encode()).hexdigest()}
    write_sealed(path, {**encoded, DETAILS_SEAL: dict(detail_files)})
    return path


def check_can_write(folder: Path, measure: Measure, *, overwrite: bool = False) -> None:
    """Raise if a result would replace a file that this program did not write."""
    path = folder / measure.file
    check_replaceable(path, _is_result, overwrite=overwrite)
    if measure.details is not None and not measure.details_in(folder).is_dir():
        begin = measure.details_begin.encode()

        def is_detail_file(file: Path) -> bool:
            return path.is_file() or (begin != b"" and _begins(file, (begin,)))

        check_replaceable(measure.details_in(folder), is_detail_file, overwrite=overwrite)


def _is_result(path: Path) -> bool:
    """Whether a file begins as a result, even if it was damaged or is of an older version."""
    if _begins(path, BEGINNINGS):
        return True
    try:
        return is_older(read_json(path))
    except ValueError:
        return False


def _begins(path: Path, beginnings: tuple[bytes, ...]) -> bool:
    with path.open("rb") as file:
        return file.read(max(map(len, beginnings))).startswith(beginnings)


SURELY_LATER = 10**8
"""Nanoseconds after which another change of a file has another time in every file system."""
_READ: dict[tuple[object, ...], Any] = {}


def read_once(path: Path, read: Callable[[], T], *, what: object) -> T:
    """The content of a file; `read` runs once in this process while the file does not change.

    Callers share the value, and so must not change it. Errors are raised each time.
    """
    try:
        file = path.stat()
    except OSError:
        return read()  # which names the problem
    if time.time_ns() - file.st_mtime_ns < SURELY_LATER:
        return read()  # the next change may leave size and time as they are
    key = (path, file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, what)
    if key not in _READ:
        _READ[key] = read()
    return _READ[key]


def read_result(folder: Path, measure: Measure) -> Result:
    """Read the result of a measure from a folder; raises if the file is missing or invalid."""
    return _result_and_details(folder, measure)[0]


def _result_and_details(folder: Path, measure: Measure) -> tuple[Result, Any]:
    """A result, and the sha256 of each of its detail files by name."""
    path, again = folder / measure.file, _again(folder, measure)

    def read() -> tuple[Result, Any]:
        data = read_sealed_file(path, again=again)
        details = data.pop(DETAILS_SEAL, None)
        return _decoded(measure.result_type(), data, path, again=again), details

    return read_once(path, read, what=measure.name)


def check_details(folder: Path, measure: Measure) -> None:
    """Raise if the details of a result are missing or not as they were written."""
    again, sealed = _again(folder, measure), _result_and_details(folder, measure)[1]
    has_details = measure.details is not None and is_there(measure.details_in(folder))
    if not isinstance(sealed, dict) or (has_details and not sealed):
        raise ValueError(f"{folder / measure.file}: does not list its details; {again}")
    for name, sha256 in sealed.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path}: there is no such file; {again}")
        if read_once(path, partial(file_sha256, path), what="sha256") != sha256:
            reason = "its sha256 is not the recorded one"
            raise ValueError(f"{path}: not as it was written ({reason}); {again}")


def is_measured(folder: Path, measure: Measure) -> bool:
    """Whether a folder has a finished result file of a measure, which may be invalid."""
    path = folder / measure.file
    return is_there(path) and not (path.is_file() and _begins(path, BEGINNINGS[1:]))


def has_result(folder: Path, measure: Measure, documents: Documents | None = None) -> bool:
    """Whether a folder has a result of a measure, and its details, as this version wrote them.

    A result of other held-out documents than `documents` does not count.
    """
    if not (folder / measure.file).is_file():
        return False
    try:
        result = read_result(folder, measure)
        check_details(folder, measure)
    except ValueError:
        return False
    return is_of(result, documents)


def is_of(result: Result, documents: Documents | None) -> bool:
    """Whether a result is of these held-out documents; None stands for any.

    Only an NLL is of documents that were chosen; its field `scored` names them.
    """
    return documents is None or getattr(result, "scored", documents) == documents


def read_typed(cls: type[T], path: Path, *, again: str) -> T:
    """A sealed file as a dataclass; `again` says in the error how to make the file again."""
    return read_once(
        path,
        lambda: _decoded(cls, read_sealed_file(path, again=again), path, again=again),
        what=cls,
    )


def _decoded(cls: type[T], data: dict[str, Any], path: Path, *, again: str) -> T:
    try:
        return decode(cls, data)
    except ValueError as error:
        raise ValueError(f"{path}: not as it was written ({one_line(error)}); {again}") from None


def read_sealed_file(path: Path, *, again: str) -> dict[str, Any]:
    """The content of a sealed file; `again` is part of every error."""
    try:
        data = read_json(path)
        if is_older(data):
            raise ValueError(f"{path}: written by an older version")
        return read_sealed(path)
    except ValueError as error:
        raise ValueError(f"{one_line(error)}; {again}") from None


def is_older(data: Any) -> bool:
    """Whether JSON is a result of a version that sealed no results."""
    provenance = data.get("provenance") if isinstance(data, dict) else None
    return isinstance(provenance, dict) and "created" in provenance and SEAL not in data


def _again(folder: Path, measure: Measure) -> str:
    return f"measure again: {command_for(folder, measure)}"


def command_for(folder: Path, measure: Measure) -> str:
    """The command that measures the run again and saves the result in this folder."""
    if folder.name == runs.RESULTS:
        return f"{measure.command} {folder.parent}"
    if folder.parent.name == runs.RESULTS:
        return f"{measure.command} {folder.parent.parent / CHECKPOINTS / folder.name}"
    return f"{measure.command} RUN --out {folder}"
