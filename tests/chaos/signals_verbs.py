"""The verbs that take long or write files, on models so small that each takes a moment.

`Materials` makes what the verbs read. A case copies it, runs a verb under some disturbance, runs
the verb again, and compares `result_of` with that of an undisturbed run.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.signals_server import Server
from mixerloop.files import CHECKPOINTS
from small_model import training_file

BUNDLE = Path(__file__).parents[1] / "data" / "core_bundle"
TRAIN = {"steps": 12, "checkpoint_every": 3, "evaluate_every": 4, "evaluate_windows": 4}
STUDY = """
title = "A small study"
[[parts]]
name = "hops"
config = "hops.toml"
prepare = ["hops"]
arms = ["no_loop", "mixer_loop(2)"]
seeds = [1]
measure = ["nll", "hops"]
"""
TEXT = ("data", "prepare", "text", "text.jsonl", "--workers", "1", "--held-out-share", "0.2")
TRAIN_TEXT = ("train", "text.toml", "--out", "out")
SMALL_TRANSPORT = ("--windows", "2", "--positions", "2")


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A command, the files it reads and the files it makes."""

    name: str
    arguments: tuple[str, ...]
    reads: tuple[str, ...]
    """Names of materials that are copied to the place where the verb runs."""
    makes: tuple[str, ...]
    """Files and folders that hold the result; may be inside of what is read."""
    resumes: tuple[str, ...] | None = None
    """The command after a stop that left the first of `makes`; the same command by default."""
    ranks: int = 1
    prints: bool = False
    """Whether the result is on stdout."""
    is_atomic: bool = False
    """Whether the first of `makes` must be complete whenever it exists."""
    is_made_once: bool = False
    """Whether the verb rejects a result that is complete already."""
    cost: int = 1
    """A verb that takes long has so many times fewer cases than others."""

    def command(self, place: Path) -> tuple[str, ...]:
        """The command that starts the work, or finishes it after a stop."""
        begun = self.resumes is not None and (place / self.makes[0]).exists()
        return self.resumes if begun and self.resumes is not None else self.arguments


VERBS = (
    Verb(
        name="prepare",
        arguments=(*TEXT, "--vocab-size", "300", "--out", "out"),
        reads=("text.jsonl",),
        makes=("out",),
        is_made_once=True,
    ),
    Verb(
        name="train",
        arguments=TRAIN_TEXT,
        resumes=("train", "--resume", "out"),
        reads=("data", "text.toml"),
        makes=("out",),
    ),
    Verb(
        name="train-2-ranks",
        arguments=TRAIN_TEXT,
        resumes=("train", "--resume", "out"),
        reads=("data", "text.toml"),
        makes=("out",),
        ranks=2,
    ),
    Verb(
        name="resume",
        arguments=("train", "--resume", "begun"),
        reads=("data", "begun"),
        makes=("begun",),
    ),
    Verb(
        name="core",
        arguments=("evaluate", "core", "run", "--bundle", str(BUNDLE)),
        reads=("data", "run"),
        makes=("run/results",),
    ),
    Verb(
        name="nll",
        arguments=("evaluate", "nll", "run", "--passes", "1"),
        reads=("data", "run"),
        makes=("run/results",),
    ),
    Verb(
        name="hops",
        arguments=("evaluate", "hops", "hops-run", "--sequences", "256"),
        reads=("hops-data", "hops-run"),
        makes=("hops-run/results",),
    ),
    Verb(
        name="transport",
        arguments=("transport", "run", *SMALL_TRANSPORT, "--context", "16", "--control"),
        reads=("data", "run"),
        makes=("run/results",),
        cost=2,
    ),
    Verb(
        name="study",
        arguments=("study", "study.toml", "--out", "out", "--jobs", "2"),
        reads=("study.toml", "hops.toml"),
        makes=("out",),
        cost=6,
    ),
    Verb(
        name="report",
        arguments=("report", "study", "--out", "page.html"),
        reads=("study",),
        makes=("page.html", "page.md", "page-figures"),
        cost=2,
    ),
    Verb(
        name="export",
        arguments=("export", "run", "--to", "hf", "--out", "out"),
        reads=("run",),
        makes=("out",),
        is_atomic=True,
        is_made_once=True,
    ),
    Verb(
        name="import",
        arguments=("import", "hf", "--out", "out"),
        reads=("hf",),
        makes=("out",),
        is_atomic=True,
        is_made_once=True,
    ),
    Verb(
        name="init",
        arguments=("init", "text.toml", "--out", "out"),
        reads=("text.toml",),
        makes=("out",),
        is_atomic=True,
        is_made_once=True,
    ),
    Verb(
        name="generate",
        arguments=("generate", "run", "--prompt", "the", "--max-tokens", "100"),
        reads=("run",),
        makes=(),
        prints=True,
    ),
    Verb(
        name="bench",
        arguments=(
            *("bench", "transport", "--size", "nano", "--windows", "1", "--context", "40"),
            *("--repeats", "1", "--json"),
        ),
        reads=(),
        makes=(),
        cost=2,
    ),
)
TORCHRUN = Verb(
    name="torchrun",
    arguments=(*TRAIN_TEXT, "--train.steps", "150", "--train.checkpoint-every", "25"),
    resumes=("train", "--resume", "out"),
    reads=("data", "text.toml"),
    makes=("out",),
    ranks=2,
)
"""Two ranks that are started by torchrun itself; long enough to be met in their steps."""
BY_NAME = {verb.name: verb for verb in VERBS}


class Materials:
    """What verbs read, made by verbs when it is first needed."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        folder.mkdir(parents=True, exist_ok=True)

    def copy(self, verb: Verb, place: Path) -> None:
        """Put what a verb reads into a new folder."""
        place.mkdir(parents=True)
        for name in verb.reads:
            source = self._made(name)
            copy = shutil.copytree if source.is_dir() else shutil.copyfile
            copy(source, place / name)

    def _made(self, name: str) -> Path:
        path = self.folder / name
        if not path.exists():
            make, needed = _MADE[name]
            for other in needed:
                self._made(other)
            if isinstance(make, str):
                path.write_text(make)
            else:
                self._run(make)
        return path

    def _run(self, arguments: tuple[str, ...]) -> None:
        started = self.server.start(arguments, cwd=self.folder, output=self.folder / "output")
        assert started.wait() == 0, started.stderr.read_text()


def _stories() -> str:
    lines = (BUNDLE / "eval_data/made/colours.jsonl").read_text().splitlines()
    text = "\n".join(f"{line} tale {n}" for n in range(40) for line in lines)
    stories = [json.dumps({"text": text[n * 150 : n * 150 + 150]}) for n in range(200)]
    return "\n".join(stories) + "\n"


def _hops_config() -> str:
    train = {"steps": 8, "checkpoint_every": 2, "evaluate_every": 4, "evaluate_windows": 4}
    return training_file("hops-data", train=train, schedule="mixer_loop(2)")


_MADE: dict[str, tuple[str | tuple[str, ...], tuple[str, ...]]] = {
    "text.jsonl": (_stories(), ()),
    "text.toml": (
        training_file("data", context=16, train=TRAIN, vocab_size=300, schedule="mixer_loop(2)"),
        (),
    ),
    "hops.toml": (_hops_config(), ()),
    "study.toml": (STUDY, ("hops.toml",)),
    "data": ((*TEXT, "--vocab-size", "300", "--out", "data"), ("text.jsonl",)),
    "hops-data": (("data", "prepare", "hops", "--out", "hops-data"), ()),
    "run": (("train", "text.toml", "--out", "run"), ("data", "text.toml")),
    "begun": (("train", "text.toml", "--out", "begun", "--until", "5"), ("data", "text.toml")),
    "hops-run": (("train", "hops.toml", "--out", "hops-run"), ("hops-data", "hops.toml")),
    "hf": (("export", "run", "--to", "hf", "--out", "hf"), ("run",)),
    "study": (("study", "study.toml", "--out", "study", "--jobs", "2"), ("study.toml",)),
}
"""The text of a file or the command that makes a file or folder, and what it needs."""


# --- results -------------------------------------------------------------------------------------

VARIES = frozenset(
    {
        *("created", "command", "commit", "dirty", "seconds", "sessions", "id", "threads"),
        *("sha256", "checkpoint_sha256", "bytes"),
    }
)
"""Keys of JSON whose values are times or random names, or the hash or size of such values."""
NOT_COMPARED = ("timing.jsonl", "lock", "tensorboard", "log.txt")
"""Files about the process: its times, its sessions, its lock."""
WITH_SECONDS = ("out/report.*", "out/figures/*-cost.*", "out/figures/written.json")
"""Files of a study that show how many seconds its training took: only their names are compared."""


def result_of(verb: Verb, place: Path, printed: Path | None = None) -> dict[str, Any]:
    """The files of a result by name, without what differs between any two runs."""
    result: dict[str, Any] = {}
    for made in verb.makes:
        for path in _files(place / made):
            if _is_superseded(path):
                continue
            name = path.relative_to(place)
            timed = any(name.match(pattern) for pattern in WITH_SECONDS)
            result[name.as_posix()] = None if timed else _content(path, place)
    if verb.prints and printed is not None:
        result["stdout"] = printed.read_text()
    return result


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    for file in sorted(path.rglob("*")):
        parts = file.relative_to(path).parts
        is_temporary = any(part.endswith(".partial") for part in parts)  # `leftovers` finds these
        if file.is_file() and not is_temporary and not set(NOT_COMPARED) & set(parts):
            yield file


def _is_superseded(path: Path) -> bool:
    """Whether a file is of a checkpoint that is not the newest: a stop saves another step."""
    for folder in path.parents:
        if folder.parent.name == CHECKPOINTS:
            others = folder.parent.glob("step-*")
            newest = max(others, key=lambda other: int(other.name.removeprefix("step-")))
            return folder != newest
    return False


def _content(path: Path, place: Path) -> Any:
    content = path.read_bytes().replace(str(place.resolve()).encode(), b"PLACE")
    return _without_times(json.loads(content)) if path.suffix == ".json" else content


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if key not in VARIES}
    if isinstance(value, list):
        return [_without_times(item) for item in value]
    return value


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The names of files that are missing, additional or different."""
    names = sorted(found.keys() | expected.keys())
    return [name for name in names if found.get(name, ...) != expected.get(name, ...)]


def leftovers(place: Path) -> list[str]:
    """Temporary files and folders in a place."""
    return sorted(path.relative_to(place).as_posix() for path in place.rglob(".*.partial"))


def user_files(verb: Verb, place: Path) -> dict[str, bytes]:
    """The files in a place that a verb only reads."""
    made = [place / name for name in verb.makes]
    return {
        path.relative_to(place).as_posix(): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and not any(path.is_relative_to(other) for other in made)
    }
