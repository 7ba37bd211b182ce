"""The command line as a verb with its options; an error in it is a ValueError of one line.

The parser prints errors in a frame of several lines and exits. Its words are taken out of the
frame here, and an unknown word is named together with the nearest name in the parser's help.
"""

import contextlib
import dataclasses
import difflib
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tyro

from mixerloop.parsing import one_line, suggest

PROGRAM = "mixerloop"
VERSION = "--version"
COLUMNS, WIDE = "COLUMNS", "100000"
"""The width of a frame whose text is read: at 80 columns long words would be cut."""
REJECTED = 2
"""The code with which the parser exits after an error."""
MAY_BE_EMPTY = ("prompt", "stop", "schedule")
"""Options of text whose own checks know what empty text means."""
RULE = re.compile(r"\s*-{5,}\s*")
"""A line between two sections of a frame."""
OPTION = re.compile(r"^\s*(?:-\w, )?(--[\w.-]+)", re.MULTILINE)
"""The name of an option where help describes it."""
COMPLETION = re.compile(r"--tyro[-_](?:print|write)[-_]completion")
SHELLS = ("bash", "zsh", "tcsh", "fish")
REWORDED = (
    (r"Error parsing ", ""),
    (r"invalid literal for int\(\) with base 10: (.*)", r"\1 is not a whole number"),
    (r"could not convert string to float: (.*)", r"\1 is not a number"),
    (r"no type matching (\S+) could be instantiated from \[(.*?)\]\..*", r"\2 is not of type \1"),
    (r"Could not find valid parse for arguments: \[(.*)\]", r"\1 is not of its type"),
    (r"Missing value for argument '(\S+)'\. Expected.*", r"\1 needs a value"),
    (
        r"invalid choice '(.*)' for argument '(\S+)'\. Expected one of \((.*)\)\.",
        r"\2: unknown value '\1'; known: \3",
    ),
)
"""Words of the parser and of Python, and ours."""


def parse(verbs: Any, arguments: Sequence[str], *, about: str | None) -> Any:
    """The verb that the arguments name, with its options; `--help` prints help and exits."""
    if len(arguments) > 1 and COMPLETION.fullmatch(arguments[0]) and arguments[1] not in SHELLS:
        raise ValueError(
            f"{arguments[0]}: unknown shell '{arguments[1]}'; {suggest(arguments[1], SHELLS)}"
        )
    try:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            parsed = _parse(verbs, arguments, about)
    except SystemExit as stop:
        if stop.code != REJECTED:  # help, or a signal
            raise
        raise ValueError(_problem(verbs, arguments)) from None
    sys.stderr.write(said.getvalue())
    if any(word == "" or word.endswith("=") for word in arguments):
        names_this_folder = any(word == "." or word.endswith("=.") for word in arguments)
        _check_not_empty(parsed, ("",) if names_this_folder else ("", Path()))
    return parsed


def _check_not_empty(options: Any, empty: tuple[str | Path, ...]) -> None:
    """Reject empty text for an option that names something; as a path it would be this folder."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            _check_not_empty(value, empty)
            continue
        values = value if isinstance(value, list | tuple) else (value,)
        if field.name not in MAY_BE_EMPTY and any(one in empty for one in values):
            name = "run" if field.name == "run_path" else field.name.rstrip("_")
            raise ValueError(f"{name.replace('__', '.').replace('_', '-')}: is empty")


def _parse(verbs: Any, arguments: Sequence[str], about: str | None = None) -> Any:
    return tyro.cli(
        verbs,
        args=list(arguments),
        prog=PROGRAM,
        description=about,
        config=(
            tyro.conf.DisallowNone,
            tyro.conf.FlagCreatePairsOff,
            tyro.conf.OmitSubcommandPrefixes,
            tyro.conf.OmitArgPrefixes,
            tyro.conf.PositionalMetavarFromFieldName,
        ),
    )


def _problem(verbs: Any, arguments: Sequence[str]) -> str:
    """What is wrong with arguments that the parser rejects."""
    printed = _printed(verbs, arguments)
    title_lines, *sections = _sections(printed)
    if not title_lines or not all(sections):  # another version of tyro draws another frame
        return one_line(printed)
    title = title_lines[0]
    path = _path(verbs, arguments)
    left = [word for word in arguments[len(path) :] if word != "--"]
    if title == "Missing subcommand" and not left:
        return f"{_where(path)}name a verb: {', '.join(_subcommands(verbs, path))}"
    if title == "Missing subcommand":
        return _unknown(verbs, path, left[0])
    for section in sections:
        if section[0].startswith("Unrecognized"):
            text = " ".join(section)
            named = [word for word in left if word and " ".join(word.split()) in text]
            return _unknown(verbs, path, named[0] if named else section[-1])
    if title == "Required options":
        missing = [line for line in sections[0][1:] if re.match(r"--\S+|[A-Z_]+$", line)]
        return f"{_where(path)}give {' and '.join(missing)}; {_see(path)}"
    problem = " ".join(sections[0]) if sections else title
    for theirs, ours in REWORDED:
        problem = re.sub(theirs, ours, problem)
    return f"{problem.rstrip('.')}; {_see(path)}"


def _unknown(verbs: Any, path: Sequence[str], word: str) -> str:
    """The error about a word that is no verb and no option, with the nearest name."""
    where = _where(path)
    if not word.startswith("-") and (known := _subcommands(verbs, path)):
        return f"{where}unknown verb '{word}'; {suggest(word, known)}"
    if not word.startswith("-"):
        return f"{where}'{word}' belongs to no option; {_see(path)}"
    options = [*OPTION.findall(_printed(verbs, [*path, "--help"])), *([] if path else [VERSION])]
    name = word.partition("=")[0]
    near = difflib.get_close_matches(name.replace("_", "-"), options, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{where}unknown option {name}; {meant}{_see(path)}"


def _path(verbs: Any, arguments: Sequence[str]) -> list[str]:
    """The verb and its subcommands at the beginning of the arguments."""
    path: list[str] = []
    for word in arguments:
        if word not in _subcommands(verbs, path):
            break
        path.append(word)
    return path


def _subcommands(verbs: Any, path: Sequence[str]) -> list[str]:
    """The verbs that may follow a path of verbs; none after the last of them."""
    usage = re.search(r"^usage: .*\{(.*)\}$", _printed(verbs, [*path, "--help"]), re.MULTILINE)
    return usage[1].split(",") if usage else []


def _printed(verbs: Any, arguments: Sequence[str]) -> str:
    """What the parser prints before it exits, without wrapped lines."""
    with (
        _wide(),
        contextlib.redirect_stdout(io.StringIO()) as said,
        contextlib.redirect_stderr(said),
    ):
        try:
            _parse(verbs, arguments)
        except SystemExit as stop:
            if stop.code not in (None, 0, REJECTED):
                raise
    return said.getvalue()


@contextlib.contextmanager
def _wide() -> Iterator[None]:
    before = os.environ.get(COLUMNS)
    os.environ[COLUMNS] = WIDE
    try:
        yield
    finally:
        del os.environ[COLUMNS]
        if before is not None:
            os.environ[COLUMNS] = before


def _sections(frame: str) -> list[list[str]]:
    """The lines of each section of a frame; the title is the first section."""
    sections: list[list[str]] = [[]]
    for line in frame.splitlines():
        if RULE.fullmatch(line):
            sections.append([])
        elif line.strip():
            sections[-1].append(line.strip())
    return sections


def _where(path: Sequence[str]) -> str:
    return f"{' '.join(path)}: " if path else ""


def _see(path: Sequence[str]) -> str:
    return f"see {' '.join((PROGRAM, *path))} --help"
