"""Results in files: one JSON file for each measure, and the scores of each unit beside it."""

from pathlib import Path
from typing import Any, TypeVar

from mixerloop import runs
from mixerloop.files import CHECKPOINTS, json_text, read_json, write_file
from mixerloop.measures import Measure, measure_of
from mixerloop.parsing import one_line
from mixerloop.results import Result, decode, encode

T = TypeVar("T")


def write_result(folder: Path, result: Result, *, details: str | None = None) -> Path:
    """Write a result to the file of its measure in a folder; returns the file.

    `details` is the content of the measure's detail file. A result file is never beside the details
    of another result: an older result file is removed first and the new one written last.
    """
    measure = measure_of(type(result))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / measure.file
    if details is not None:
        path.unlink(missing_ok=True)
        write_file(measure.details_in(folder), details)
    write_file(path, json_text(encode(result)))
    return path


def read_result(folder: Path, measure: Measure) -> Result:
    """Read the result of a measure from a folder; raises if the file is missing or invalid."""
    again = f"measure again: {command_for(folder, measure)}"
    return read_typed(measure.result_type(), folder / measure.file, again=again)


def has_result(folder: Path, measure: Measure) -> bool:
    """Whether a folder has a result of a measure that this version can read."""
    path = folder / measure.file
    if not path.is_file():
        return False
    try:
        return not is_older(read_json(path))
    except ValueError:
        return False


def read_typed(cls: type[T], path: Path, *, again: str) -> T:
    """A JSON file as a dataclass; `again` says in the error how to make an invalid file again."""
    data = read_json(path)
    try:
        return decode(cls, data)
    except ValueError as error:
        if is_older(data):
            raise ValueError(f"{path}: written by an older version; {again}") from None
        raise ValueError(f"{path}: not as it was written ({one_line(error)}); {again}") from None


def is_older(data: Any) -> bool:
    """Whether JSON is a result of a version whose provenance had no `forms`."""
    provenance = data.get("provenance") if isinstance(data, dict) else None
    return isinstance(provenance, dict) and "created" in provenance and "forms" not in provenance


def command_for(folder: Path, measure: Measure) -> str:
    """The command that measures the run again and saves the result in this folder."""
    if folder.name == runs.RESULTS:
        return f"{measure.command} {folder.parent}"
    if folder.parent.name == runs.RESULTS:
        return f"{measure.command} {folder.parent.parent / CHECKPOINTS / folder.name}"
    return f"{measure.command} RUN --out {folder}"
