"""Files of the user are not overwritten: what may be replaced without `overwrite`.

A file is replaced only if this program wrote it. Results say so themselves. Pages, pictures and
tables do not, so a ledger beside them lists their hashes. A file that the user has changed since is
not in the ledger, and counts as the user's.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from mixerloop.files import file_sha256, read_sealed, write_file, write_sealed

LEDGER = "written.json"
FILES = "files"
FOREIGN = "not a file that mixerloop wrote, or changed"
REPLACES = "--overwrite replaces it"

Hashes = dict[str, list[str]]
"""The hashes that each file has had, by its path from the folder of the ledger."""


def check_replaceable(
    path: Path, is_ours: Callable[[Path], bool], *, overwrite: bool, otherwise: str = FOREIGN
) -> None:
    """Raise if a file exists and this program did not write it, unless `overwrite`.

    `otherwise` is the reason in the error.
    """
    if path.is_symlink():
        if not overwrite:
            raise ValueError(f"{path}: is a link, which is not written through; {REPLACES}")
    elif path.exists():
        if not path.is_file():
            raise ValueError(f"{path}: exists and is not a file")
        if not overwrite and not is_ours(path):
            raise ValueError(f"{path}: {otherwise}; {REPLACES}")


def drop_link(path: Path) -> None:
    """Remove a link, so that a file written to its path does not follow the link."""
    if path.is_symlink():
        path.unlink()


class Ledger:
    """The list of the files that this program wrote into a folder or near it, with their hashes.

    The hashes of new files are added before the files are written, so that a kill at any moment
    leaves no file that the ledger does not know.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / LEDGER

    def check(self, paths: Iterable[Path], *, overwrite: bool) -> None:
        """Raise if one of the files exists and the ledger does not know it, unless `overwrite`."""
        known = self._read(overwrite=overwrite)
        for path in paths:
            check_replaceable(path, self._is_known(known), overwrite=overwrite)

    def write(self, files: Mapping[Path, bytes | str], *, overwrite: bool) -> None:
        """Write files, after a check of all of them; an identical file may be of any origin."""
        known = self._read(overwrite=overwrite)
        contents = {path: _bytes(content) for path, content in files.items()}
        for path, content in contents.items():
            if not _is_identical(path, content):
                check_replaceable(path, self._is_known(known), overwrite=overwrite)
        new = {
            self._name(path): [hashlib.sha256(content).hexdigest()]
            for path, content in contents.items()
        }
        both = {
            name: list(dict.fromkeys([*known.get(name, ()), *hashes]))
            for name, hashes in new.items()
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        self._record({**known, **both}, instead_of=known)
        for path, content in contents.items():
            if not _is_identical(path, content):
                drop_link(path)
                write_file(path, content)
        self._record({**known, **new}, instead_of={**known, **both})

    def _is_known(self, known: Hashes) -> Callable[[Path], bool]:
        return lambda path: file_sha256(path) in known.get(self._name(path), ())

    def _name(self, path: Path) -> str:
        return Path(os.path.relpath(path, self.folder)).as_posix()

    def _read(self, *, overwrite: bool) -> Hashes:
        if not self.path.exists() and not self.path.is_symlink():
            return {}
        try:
            if self.path.is_symlink():
                raise ValueError(f"{self.path}: is a link, which is not written through")
            files = read_sealed(self.path).get(FILES)
            if not isinstance(files, dict) or not all(isinstance(x, list) for x in files.values()):
                raise ValueError(f"{self.path}: not a list of files")
        except ValueError as error:
            if overwrite:
                return {}
            raise ValueError(f"{error}; {REPLACES}") from None
        return files

    def _record(self, hashes: Hashes, *, instead_of: Hashes) -> None:
        drop_link(self.path)
        if hashes != instead_of:
            write_sealed(self.path, {FILES: hashes})


def _is_identical(path: Path, content: bytes) -> bool:
    return path.is_file() and not path.is_symlink() and path.read_bytes() == content


def _bytes(content: bytes | str) -> bytes:
    return content.encode() if isinstance(content, str) else content
