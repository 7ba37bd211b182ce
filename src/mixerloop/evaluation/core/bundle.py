"""The evaluation bundle: a folder, `.zip` or `.tar.xz`, read in place.

Nothing is unpacked to the disk. An archive with paths out of its folder is rejected all the same,
because it cannot be a genuine bundle.
"""

import csv
import hashlib
import io
import lzma
import os
import secrets
import shutil
import tarfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from mixerloop.evaluation.core.corrections import Corrections
from mixerloop.evaluation.core.tasks import Example, Task, read_examples, read_tasks
from mixerloop.parsing import suggest

VARIABLE = "MIXERLOOP_CORE_BUNDLE"
PUBLIC = "https://karpathy-public.s3.us-west-2.amazonaws.com/eval_bundle.zip"
"""The address of the public bundle."""
TASKS, DATA = "core.yaml", "eval_data"
BASELINES_V1, BASELINES_V2 = "eval_meta_data.csv", "eval_meta_data_dclm_v2.csv"
CORRECTED = {
    "commonsense_qa": 40.3,
    "agi_eval_lsat_ar": 25.0,
    "bigbench_language_identification": 25.0,
}
"""Baselines, in percent, that version 2 corrected; used for bundles without its file."""
WANTED = (".yaml", ".csv", ".jsonl")
MOST_BYTES = 2**30  # the public bundle has 50 MB
DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error),
    *(EOFError, OSError, RuntimeError),  # RuntimeError: the archive is encrypted
)

Download = Callable[[str, Path], None]


class Bundle:
    """The tasks, examples and random baselines of a bundle."""

    corrections: Corrections | None = None
    """Corrected answers to some questions; None scores the answers of the bundle."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = _folder(path) if path.is_dir() else _archive(path)
        self.tasks = read_tasks(self._file(TASKS), f"{path}: {TASKS}")
        self.baselines_v1 = self._baselines(BASELINES_V1)
        self.baselines_v2 = (
            self._baselines(BASELINES_V2)
            if self._read(BASELINES_V2) is not None
            else self.baselines_v1
            | {label: x / 100 for label, x in CORRECTED.items() if label in self.baselines_v1}
        )

    def examples(self, task: Task) -> list[Example]:
        """All examples of a task, in the order of its file; wrong answers are corrected."""
        name = _dataset(task)
        examples = read_examples(self._file(name), task.kind, f"{self.path}: {name}")
        if self.corrections is None:
            return examples
        return self.corrections.apply(task.label, examples)

    def correct(self, corrections: Corrections) -> dict[str, int]:
        """Correct answers from now on; returns the number of corrected examples of each task."""
        self.corrections = None
        tasks = self.choose(tuple(corrections.gold))
        before = {task.label: self.examples(task) for task in tasks}
        self.corrections = corrections
        return {
            task.label: sum(
                old != new for old, new in zip(before[task.label], self.examples(task), strict=True)
            )
            for task in tasks
        }

    def fingerprint(self) -> str:
        """The sha256 of tasks, examples and baselines, the same for a folder and an archive."""
        digest = hashlib.sha256()
        examples = sorted({_dataset(task) for task in self.tasks})
        for name in (TASKS, BASELINES_V1, BASELINES_V2, *examples):
            content = self._read(name)
            sha256 = None if content is None else hashlib.sha256(content).hexdigest()
            digest.update(f"{name}\0{sha256}\n".encode())
        return digest.hexdigest()

    def choose(self, labels: tuple[str, ...]) -> tuple[Task, ...]:
        """The tasks with these labels, in the bundle's order; all tasks if there are no labels."""
        known = [task.label for task in self.tasks]
        for label in labels:
            if label not in known:
                raise ValueError(f"no task '{label}' in {self.path}; {suggest(label, known)}")
        tasks = tuple(task for task in self.tasks if not labels or task.label in labels)
        for task in tasks:
            self._file(_dataset(task))
        return tasks

    def _file(self, name: str) -> bytes:
        content = self._read(name)
        if content is None:
            by = "" if name in (TASKS, BASELINES_V1, BASELINES_V2) else f", which {TASKS} names"
            raise ValueError(f"{self.path}: no {name} in this bundle{by}")
        return content

    def _baselines(self, name: str) -> dict[str, float]:
        """Read the published accuracy of guessing on each task."""
        baselines: dict[str, float] = {}
        rows = csv.DictReader(io.StringIO(self._file(name).decode("utf-8-sig", "replace")))
        try:
            for row in rows:
                baselines[row["Eval Task"]] = float(row["Random baseline"]) / 100
        except (KeyError, TypeError, ValueError, csv.Error):
            where = f"{self.path}: {name}, line {rows.line_num}"
            raise ValueError(f"{where}: no label with a random baseline") from None
        for task in self.tasks:
            if not 0 <= baselines.get(task.label, -1) < 1:
                raise ValueError(f"{self.path}: {name} has no random baseline of {task.label}")
        return {task.label: baselines[task.label] for task in self.tasks}


def _dataset(task: Task) -> str:
    name = f"{DATA}/{task.dataset}"
    if _leaves_its_folder(name):
        raise ValueError(f"{task.label}: {task.dataset!r} lies outside the bundle")
    return name


def _folder(path: Path) -> Callable[[str], bytes | None]:
    for root in (path, path / "eval_bundle"):
        if (root / TASKS).is_file():
            return lambda name: (root / name).read_bytes() if (root / name).is_file() else None
    raise ValueError(f"{path}: no {TASKS} in this folder, so it is not an evaluation bundle")


def _archive(path: Path) -> Callable[[str], bytes | None]:
    if not path.is_file():
        raise ValueError(f"{path}: there is no such bundle")
    files: dict[str, bytes] = {}
    size = 0
    try:
        for name, is_plain, num_bytes, read in _members(path):
            if _leaves_its_folder(name) or not is_plain:
                raise ValueError(f"{path}: holds {name!r}, which is no file inside it")
            size += num_bytes
            if size > MOST_BYTES:
                raise ValueError(f"{path}: unpacks to more than {MOST_BYTES / 2**30:.0f} GiB")
            known = PurePosixPath(name).as_posix()
            if known in files:
                raise ValueError(f"{path}: holds {name!r} twice")
            if name.endswith(WANTED):
                files[known] = read()
    except DAMAGED as error:
        raise ValueError(f"{path}: cannot be unpacked: {error}") from None
    for root in (PurePosixPath(), PurePosixPath("eval_bundle")):
        if (root / TASKS).as_posix() in files:
            return lambda name: files.get((root / name).as_posix())
    raise ValueError(f"{path}: no {TASKS} in this archive, so it is not an evaluation bundle")


_Member = tuple[str, bool, int, Callable[[], bytes]]


def _members(path: Path) -> Iterator[_Member]:
    """Name, whether the member is a plain file or folder, size, and a function that reads it."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                kind = (
                    info.external_attr >> 28
                ) & 0xF  # file type of the Unix mode: 8 file, 4 folder
                yield (
                    info.filename,
                    kind in (0, 4, 8),
                    info.file_size,
                    lambda info=info: archive.read(info),
                )
        return
    with tarfile.open(path) as archive:
        for member in archive:

            def read(member: tarfile.TarInfo = member) -> bytes:
                file = archive.extractfile(member)
                return b"" if file is None else file.read()  # None for a folder

            yield member.name, member.isfile() or member.isdir(), member.size, read


def _leaves_its_folder(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    return name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "\0" in name


def cache() -> Path:
    """The path of the downloaded public bundle."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mixerloop" / "eval_bundle.zip"


def find_bundle(given: Path | None, *, download: Download | None = None) -> Bundle:
    """Open the given bundle, the bundle named in the environment, or the public bundle."""
    if given is not None:
        return Bundle(given)
    if named := os.environ.get(VARIABLE):
        return Bundle(Path(named))
    cached = cache()
    if not cached.is_file():
        temporary = cached.with_name(f".eval_bundle.{secrets.token_hex(4)}.zip")
        try:
            cached.parent.mkdir(parents=True, exist_ok=True)
            (download or fetch)(PUBLIC, temporary)
            Bundle(temporary)
            temporary.replace(cached)
        except OSError as error:
            raise ValueError(
                f"{PUBLIC} cannot be fetched ({error}); name a file or folder: bundle, or "
                f"${VARIABLE}"
            ) from None
        finally:
            temporary.unlink(missing_ok=True)
    return Bundle(cached)


def fetch(url: str, to: Path) -> None:
    """Download `url` to the file `to`."""
    with urllib.request.urlopen(url, timeout=60) as answer, to.open("wb") as file:  # noqa: S310
        shutil.copyfileobj(answer, file)
