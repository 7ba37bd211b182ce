"""Result files as the verbs print them with `--json`, without seals."""

from pathlib import Path
from typing import Any

from mixerloop.files import read_sealed
from mixerloop.result_files import DETAILS_SEAL


def as_printed(path: Path) -> dict[str, Any]:
    """The result in a file; raises if the file is not as it was written."""
    result = read_sealed(path)
    del result[DETAILS_SEAL]
    return result
