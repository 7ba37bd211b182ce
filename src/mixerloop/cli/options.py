"""The command line as a verb with its options; an error in it is a ValueError of one line.

The parser prints errors in a frame of several lines and exits. The tree of verbs says what is wrong
instead, with the nearest name; where the tree does not know, the words of the parser are taken out
of their frame.
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

from mixerloop.cli.overview import PROGRAM, overview
from mixerloop.cli.verb_tree import HELP, Option, Verb, tree_of
from mixerloop.files import name_problem
from mixerloop.parsing import one_line, suggest

HELPS = ("-h", HELP)
VERSION = "--version"
OUT = "--out"
"""The option of every verb that names a new file or folder."""
COLUMNS, WIDE = "COLUMNS", "100000"
"""The width of a frame whose text is read: at 80 columns long words would be cut."""
REJECTED = 2
"""The code with which the parser exits after an error."""
MAY_BE_EMPTY = ("prompt", "stop", "schedule")
"""Options of text whose own checks know what empty text means."""
RULE = re.compile(r"\s*-{5,}\s*")
"""A line between two sections of a frame."""
PARSERS_OWN = re.compile(r"--tyro[-_]")
"""Options of the parser beside ours; it answers a wrong value with a traceback."""
NEGATIVE = re.compile(r"-[\d.]")
"""The beginning of a value that is no option."""


def parse(verbs: Any, arguments: Sequence[str], *, about: str) -> Any:
    """The verb that the arguments name, with its options; `--help` prints help and exits."""
    if arguments and PARSERS_OWN.match(arguments[0]):
        raise ValueError(
            f"unknown option {one_line(arguments[0])}; see mixerloop completion --help"
        )
    verb = tree_of(verbs, about=about).at(arguments)
    if verb.verbs:
        words = arguments[len(verb.path) :]
        if not words or words[0] not in HELPS:
            raise ValueError(_no_verb(verb, words))
        print(overview(verb), end="")
        sys.exit(0)
    try:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            parsed = _parse(verbs, arguments)
    except SystemExit as stop:
        if stop.code != REJECTED:  # help, or a signal
            raise
        raise ValueError(_problem(verbs, verb, arguments)) from None
    sys.stderr.write(said.getvalue())
    _check_values(verb, arguments)
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


def _parse(verbs: Any, arguments: Sequence[str]) -> Any:
    return tyro.cli(
        verbs,
        args=list(arguments),
        prog=PROGRAM,
        config=(
            tyro.conf.DisallowNone,
            tyro.conf.FlagCreatePairsOff,
            tyro.conf.OmitSubcommandPrefixes,
            tyro.conf.OmitArgPrefixes,
            tyro.conf.PositionalMetavarFromFieldName,
        ),
    )


def _check_values(verb: Verb, arguments: Sequence[str]) -> None:
    """Reject values that the parser accepts in silence.

    It drops an option for any number of values that has none, and takes the value of `--flag=value`
    for a positional argument.
    """
    for given in _given(verb, arguments[len(verb.path) :]):
        if given.option is not None and (problem := _count_problem(given.option, given)):
            raise ValueError(f"{problem}; {_see(verb.path)}")
        for value in given.values:
            if given.name == OUT and (problem := name_problem(value)):
                raise ValueError(f"{OUT} {one_line(repr(value))}: {problem}; choose another name")


@dataclasses.dataclass
class Given:
    """An option on the command line with its values; positional arguments have no name."""

    name: str
    option: Option | None
    """None if the verb has no such option."""
    values: list[str]
    has_equals: bool = False


def _given(verb: Verb, words: Sequence[str]) -> list[Given]:
    """The options of a command line in their order, and its positional arguments at the end."""
    options, positional = list[Given](), Given("", None, [])
    for word in words:
        if word == "--":
            continue
        last = options[-1] if options else positional
        if word.startswith("-") and not NEGATIVE.match(word):
            name, equals, value = word.partition("=")
            options.append(Given(name, verb.option(name), [value] * bool(equals), bool(equals)))
        elif last.option is not None and _takes_more(last.option, last.values):
            last.values.append(word)
        else:
            positional.values.append(word)
    return [*options, positional]


def _takes_more(option: Option, values: Sequence[str]) -> bool:
    return not option.is_flag and (option.is_many or not values)


def _problem(verbs: Any, verb: Verb, arguments: Sequence[str]) -> str:
    """What is wrong with arguments that the parser rejects."""
    *options, positional = _given(verb, arguments[len(verb.path) :])
    for given in options:
        if problem := _option_problem(verb, given):
            return problem
    places = [option for option in verb.options if option.is_positional]
    for option, value in zip(places, positional.values, strict=False):
        if problem := _value_problem(option, option.name, value):
            return f"{_where(verb.path)}{problem}; {_see(verb.path)}"
    if len(positional.values) > len(places) and not any(option.is_many for option in places):
        word = one_line(positional.values[len(places)])
        return f"{_where(verb.path)}'{word}' belongs to no option; {_see(verb.path)}"
    return _parsers_words(verb, _printed(verbs, arguments))


def _no_verb(verb: Verb, words: Sequence[str]) -> str:
    """The error about a command line whose verb is missing or unknown."""
    where = _where(verb.path)
    if not words:
        return f"{where}name a verb: {', '.join(verb.names)}"
    if not words[0].startswith("-"):
        return f"{where}unknown verb '{one_line(words[0])}'; {suggest(words[0], verb.names)}"
    name = words[0].partition("=")[0]
    having = [below.path[-1] for below in verb.verbs if below.option(name) is not None]
    if having:
        return f"{where}name a verb before {name}: {', '.join(having)}"
    return _unknown_option(verb, name)


def _option_problem(verb: Verb, given: Given) -> str | None:
    option = given.option
    if option is None:
        return _unknown_option(verb, given.name)
    if problem := _count_problem(option, given):
        return f"{problem}; {_see(verb.path)}"
    for value in given.values:
        if problem := _value_problem(option, given.name, value):
            return f"{problem}; {_see(verb.path)}"
    return None


def _count_problem(option: Option, given: Given) -> str | None:
    """Whether there are too few or too many values."""
    if option.is_flag:
        return f"{given.name} takes no value" if given.has_equals else None
    return None if given.values else f"{given.name} needs a value"


def _value_problem(option: Option, name: str, value: str) -> str | None:
    shown = one_line(repr(value))
    if option.choices and value not in option.choices:
        return f"{name}: unknown value {shown}; {suggest(value, option.choices)}"
    if option.number is not None:
        try:
            option.number(value)
        except ValueError:
            return f"{name}: {shown} is not a {'whole ' * (option.number is int)}number"
    return None


def _unknown_option(verb: Verb, name: str) -> str:
    options = [*verb.option_names, *([] if verb.path else [VERSION])]
    near = difflib.get_close_matches(name.replace("_", "-"), options, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{_where(verb.path)}unknown option {one_line(name)}; {meant}{_see(verb.path)}"


def _parsers_words(verb: Verb, printed: str) -> str:
    """The message in the frame that the parser prints; it knows what is required."""
    title, *sections = _sections(printed)
    if not title or not all(sections):  # another version of tyro draws another frame
        return one_line(printed)
    if title[0] == "Required options":
        missing = [line for line in sections[0][1:] if re.match(r"--\S+|[A-Z_]+$", line)]
        return f"{_where(verb.path)}give {' and '.join(missing)}; {_see(verb.path)}"
    problem = " ".join(sections[0]) if sections else title[0]
    return f"{problem.removeprefix('Error parsing ').rstrip('.')}; {_see(verb.path)}"


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
