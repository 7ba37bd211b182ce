"""The configs and studies that come with the package, by name: `nano-hops`, `quick`.

The argument of a user is a path if it ends in .toml, contains a path separator or is the name of an
existing file. Every other argument is a name in the catalog.

The first comment line of a config describes it. The first comment line of a study begins with
`Needs:`; its title says what it asks.
"""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

from mixerloop.parsing import checked, suggest

HOME = Path(__file__).parent
CONFIGS, STUDIES = HOME / "configs", HOME / "studies"
SUFFIX = ".toml"
NEEDS = "Needs:"


@dataclass(frozen=True, kw_only=True)
class ListedConfig:
    """A config of the catalog."""

    name: str
    about: str
    """One line about the model and its data."""


@dataclass(frozen=True, kw_only=True)
class ListedStudy:
    """A study of the catalog."""

    name: str
    title: str
    needs: str
    """One line: the time it takes, and the files that a user must bring."""


def list_configs() -> list[ListedConfig]:
    """All configs of the catalog, in the order of their names."""
    return [
        ListedConfig(name=name, about=_first_comment(path))
        for name, path in _files(CONFIGS).items()
    ]


def list_studies() -> list[ListedStudy]:
    """All studies of the catalog, in the order of their names."""
    return [
        ListedStudy(
            name=name,
            title=tomllib.loads(path.read_text(encoding="utf-8"))["title"],
            needs=_first_comment(path).removeprefix(NEEDS).strip(),
        )
        for name, path in _files(STUDIES).items()
    ]


def config_names() -> list[str]:
    """The names of the configs."""
    return list(_files(CONFIGS))


def study_names() -> list[str]:
    """The names of the studies."""
    return list(_files(STUDIES))


def config_file(given: Path | str, *, beside: Path | None = None) -> Path:
    """The config that a user names by path or name; a relative path starts in `beside`."""
    return _file(given, CONFIGS, "config", beside=beside)


def study_file(given: Path | str) -> Path:
    """The study that a user names by path or name."""
    return _file(given, STUDIES, "study")


@checked
def config_text(name: str) -> str:
    """The text of a config of the catalog, as a start for a config of one's own."""
    return _named(name, CONFIGS, "config").read_text(encoding="utf-8")


@checked
def study_text(name: str) -> str:
    """The text of a study of the catalog, as a start for a study of one's own."""
    return _named(name, STUDIES, "study").read_text(encoding="utf-8")


def is_path(given: Path | str, *, beside: Path | None = None) -> bool:
    """Whether an argument of a user is a path and not a name in the catalog."""
    text = str(given)
    separators = [separator for separator in (os.sep, os.altsep) if separator]
    if text.endswith(SUFFIX) or any(separator in text for separator in separators):
        return True
    return ((beside or Path()) / text).is_file()


def _file(given: Path | str, folder: Path, what: str, *, beside: Path | None = None) -> Path:
    if is_path(given, beside=beside):
        return Path(given) if beside is None else beside / given
    return _named(str(given), folder, what)


def _named(name: str, folder: Path, what: str) -> Path:
    files = _files(folder)
    if name not in files:
        raise ValueError(
            f"unknown {what} '{name}'; {suggest(name, files)}; a file of yours ends in {SUFFIX}"
        )
    return files[name]


def _files(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob(f"*{SUFFIX}"))}


def _first_comment(path: Path) -> str:
    first, _, _ = path.read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("#").strip()
