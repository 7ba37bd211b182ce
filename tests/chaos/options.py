"""The cases of options: every option of every verb x values that no one should give.

The options are read from the dataclasses of the verbs, so that a new option is a new case.
"""

import dataclasses
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tyro

from chaos.fixtures import QUICK, VOCAB
from mixerloop.data.tasks.registry import TASKS

VALUES = {
    "empty": "",
    "zero": "0",
    "negative": "-1",
    "huge": "1" + 12 * "0",
    "vast": "1" + 30 * "0",
    "nan": "nan",
    "infinite": "inf",
    "unicode": "\u03a9\u2713 \u6f22",
    "newline": "a b\nc",
    "folder": "folder",
    "missing": "no/such/path",
}
"""Values that each option is given; `folder` is a folder that exists."""
GIVEN = "given"
"""The only value of a flag."""
ENDLESS = {
    "--train.steps",
    "--train.tokens",
    "--train.flops",
    "--train.seconds",
    "--max-tokens",
    "--repeats",
    "--warmup",
}
"""Options that ask for as much work as their number says. A verb with a huge number is not judged
by whether it ends: it gets Ctrl-C, and must then stop at once."""
ENDLESS_VALUES = {"huge", "vast", "infinite"}
INTERRUPT_SECONDS = 4.0


@dataclass(frozen=True)
class Option:
    """An option or a positional argument of a verb."""

    verb: tuple[str, ...]
    name: str
    """With its dashes; a positional argument has none."""
    is_flag: bool = False

    @property
    def is_positional(self) -> bool:
        """Whether the value stands alone."""
        return not self.name.startswith("--")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command that succeeds, in which one value is replaced."""

    positional: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    options: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    brings: tuple[str, ...] = ()
    resumes: bool = False
    """Whether files that an error leaves behind are those with which the same command resumes."""
    before: Callable[[], None] | None = None
    is_slow: bool = False
    """Whether the command, or what it imports, takes more than half a second."""

    @property
    def is_quick(self) -> bool:
        """Whether the command and its fixtures take only a moment."""
        return not self.is_slow and QUICK.issuperset(self.brings)

    def words(self, verb: tuple[str, ...], option: Option | None, value: str) -> tuple[str, ...]:
        """The command with a value of an option."""
        positional, options = dict(self.positional), dict(self.options)
        if option is not None:
            values = () if option.is_flag else (value,)
            (positional if option.is_positional else options)[option.name] = values
        return (
            *verb,
            *(word for words in positional.values() for word in words),
            *(word for name, words in options.items() for word in (name, *words)),
        )


def _small_library() -> None:
    """Prepare a few files of this Python's library instead of all."""
    from mixerloop.data import corpora

    whole = corpora.standard_library

    def some() -> corpora.Source:
        source = whole()
        return dataclasses.replace(source, files=source.files[:40])

    corpora.standard_library = some


def _few_resamples() -> None:
    """Fit a law a few times instead of hundreds of times."""
    from mixerloop.laws import study_law

    study_law.RESAMPLES = 4


_MEASURING = {"positional": {"run": ("run",)}, "brings": ("run", "data")}
_HOPS = {"positional": {"run": ("hopsrun",)}, "brings": ("hopsrun", "hops")}
_QUICK = {"--repeats": ("1",)}
COMMANDS: dict[tuple[str, ...], Command] = {
    ("describe",): Command(positional={"size": ("run",)}, brings=("run",)),
    ("data", "prepare", "climbmix"): Command(
        is_slow=True,
        options={
            "--from": ("climbmix",),
            "--shards": ("0",),
            "--vocab-size": (str(VOCAB),),
            "--workers": ("1",),
            "--out": ("new",),
        },
        brings=("climbmix", "words.model"),
    ),
    ("data", "prepare", "text"): Command(
        is_slow=True,
        positional={"paths": ("source/train.jsonl",)},
        options={
            "--held-out-share": ("0.2",),
            "--vocab-size": (str(VOCAB),),
            "--workers": ("1",),
            "--out": ("new",),
        },
        brings=("source", "words.model"),
    ),
    ("data", "prepare", "stdlib"): Command(
        is_slow=True,
        options={"--vocab-size": ("400",), "--workers": ("1",), "--out": ("new",)},
        brings=("words.model",),
        before=_small_library,
    ),
    **{("data", "prepare", task): Command(options={"--out": ("new",)}) for task in TASKS},
    ("data", "verify"): Command(positional={"folder": ("data",)}, brings=("data",)),
    ("data", "show"): Command(positional={"folder": ("data",)}, brings=("data",)),
    ("train",): Command(
        positional={"config": ("text.toml",)},
        options={"--out": ("new",)},
        brings=("text.toml", "data", "half"),
    ),
    ("runs",): Command(positional={"folder": (".",)}, brings=("run",)),
    ("evaluate", "nll"): Command(**_MEASURING),
    ("evaluate", "core"): Command(
        positional={"run": ("run",)},
        options={"--bundle": ("bundle",), "--out": ("new",)},
        brings=("run", "data", "bundle"),
        resumes=True,
    ),
    ("evaluate", "hops"): Command(**_HOPS, options={"--sequences": ("16",)}),
    ("evaluate", "task"): Command(**_HOPS, options={"--sequences": ("16",)}),
    ("evaluate", "routing"): Command(
        positional={"run": ("expertsrun",)},
        options={"--windows": ("2",)},
        brings=("expertsrun", "hops"),
    ),
    ("evaluate", "compare"): Command(
        positional={"run-paths": ("run", "other")}, brings=("run", "other")
    ),
    ("transport",): Command(
        is_slow=True,
        positional={"run": ("run",)},
        options={
            "--windows": ("2",),
            "--positions": ("2",),
            "--context": ("16",),
            "--seed": ("5",),
            "--json": (),
        },
        brings=("run", "data"),
    ),
    ("study",): Command(
        is_slow=True,
        positional={"what": ("study.toml",)},
        options={"--out": ("study",), "--jobs": ("1",), "--cells": ("1",)},
        brings=("study.toml", "hops.toml", "study"),
        resumes=True,
    ),
    ("law",): Command(
        is_slow=True,
        positional={"study": ("lawstudy",)},
        before=_few_resamples,
        brings=("lawstudy",),
    ),
    ("report",): Command(
        is_slow=True,
        positional={"paths": ("hopsrun",)},
        options={"--out": ("new.html",)},
        brings=("hopsrun",),
    ),
    ("bench", "operator"): Command(is_slow=True, options={"--shapes": ("token",), **_QUICK}),
    ("bench", "prefill"): Command(
        is_slow=True,
        options={
            "--sizes": ("nano",),
            "--batches": ("1",),
            "--length": ("8",),
            "--warmup": ("1",),
            **_QUICK,
        },
    ),
    ("bench", "decode"): Command(is_slow=True, options={"--size": ("nano",), **_QUICK}),
    ("bench", "train"): Command(
        is_slow=True,
        options={
            "--size": ("nano",),
            "--loops": ("no_loop",),
            "--batch": ("1",),
            "--length": ("16",),
            **_QUICK,
        },
    ),
    ("bench", "transport"): Command(
        is_slow=True,
        options={
            "--size": ("nano",),
            "--windows": ("1",),
            "--positions": ("2",),
            "--context": ("16",),
            **_QUICK,
        },
    ),
    ("bench", "core"): Command(
        is_slow=True,
        positional={"run": ("run",)},
        options={"--bundle": ("bundle",), "--examples": ("3",), **_QUICK},
        brings=("run", "data", "bundle"),
    ),
    ("doctor",): Command(),
    ("configs",): Command(positional={"name": ("nano-hops",)}),
    ("studies",): Command(positional={"name": ("quick",)}),
    ("completion",): Command(positional={"shell": ("bash",)}),
    ("init",): Command(
        positional={"size": ("text.toml",)},
        options={"--out": ("new",)},
        brings=("text.toml", "words.model"),
    ),
    ("generate",): Command(
        positional={"run": ("run",)},
        options={"--prompt": ("the",), "--max-tokens": ("4",)},
        brings=("run",),
    ),
    ("export",): Command(
        is_slow=True, positional={"run": ("run",)}, options={"--out": ("new",)}, brings=("run",)
    ),
    ("import",): Command(
        is_slow=True,
        positional={"folder": ("exported",)},
        options={"--out": ("new",)},
        brings=("exported",),
    ),
}
"""A command of each verb that succeeds in a moment."""


@dataclass(frozen=True)
class OptionCase:
    """A verb with a value of one of its options."""

    option: Option
    value: str
    """The name of the value in `VALUES`."""

    @property
    def id(self) -> str:
        """The name of the case, for `--only`."""
        return f"{' '.join(self.option.verb)}: {self.option.name} {self.value}"

    @property
    def group(self) -> tuple[str, str]:
        """A sample takes as many cases of each group, as far as there are any."""
        return " ".join(self.option.verb), self.value

    @property
    def text(self) -> str:
        """The value as it stands on the command line."""
        return "" if self.option.is_flag else VALUES[self.value]

    @property
    def command(self) -> Command:
        """The command whose value is replaced."""
        return COMMANDS[self.option.verb]

    @property
    def words(self) -> tuple[str, ...]:
        """The command line."""
        return self.command.words(self.option.verb, self.option, self.text)

    @property
    def is_endless(self) -> bool:
        """Whether the user asked for work without end."""
        return self.option.name in ENDLESS and self.value in ENDLESS_VALUES


def option_cases() -> list[OptionCase]:
    """All cases, in a fixed order."""
    return [
        OptionCase(option, value)
        for option in all_options()
        for value in ((GIVEN,) if option.is_flag else VALUES)
    ]


def all_options() -> list[Option]:
    """Every option of every verb."""
    from mixerloop.cli.main import Verb

    return list(_options_of(Verb, ()))


def _options_of(hint: Any, verb: tuple[str, ...]) -> Iterator[Option]:
    """The options of a dataclass, or of each subcommand of a union."""
    for subcommand in typing.get_args(hint):
        (name,) = (conf.name for conf in subcommand.__metadata__ if hasattr(conf, "is_default"))
        yield from _fields_of(subcommand.__origin__, (*verb, name))


def _fields_of(cls: type, verb: tuple[str, ...]) -> Iterator[Option]:
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from _fields_of(typing.cast(type, hint), verb)
        elif _is_choice_of_subcommands(hint):
            yield from _options_of(hint, verb)
        else:
            conf = getattr(hint, "__metadata__", ())
            named = [part.name for part in conf if getattr(part, "name", None) is not None]
            name = named[0] if named else field.name
            if tyro.conf.Positional in conf:
                yield Option(verb, name.replace("_", "-"))
            else:
                is_flag = hint is bool
                yield Option(verb, f"--{name.replace('_', '-')}", is_flag)


def _is_choice_of_subcommands(hint: Any) -> bool:
    return any(
        hasattr(conf, "is_default")
        for part in typing.get_args(hint)
        for conf in getattr(part, "__metadata__", ())
    )


def named_by(case: OptionCase, line: str) -> bool:
    """Whether an error names the option, its key, or its value."""
    name = case.option.name.lstrip("-")
    key = name.rpartition(".")[2]
    words = {name, key, key.replace("-", "_"), key.replace("-", " ")}
    if key.endswith("s"):  # `--passes 0` may be an error about a single one
        words |= {word[:-1] for word in words if len(word) > 3}
    told = line.lower()
    return any(word in told for word in words) or _shows(line, case.text)


def _shows(line: str, text: str) -> bool:
    """Whether a message shows a value, as it was given or as Python prints it."""
    if text == "":
        return "''" in line or '""' in line
    shown = {text, repr(text), ascii(text), " ".join(text.split())}
    if text.lstrip("-").isdecimal():
        shown |= {f"{int(text):,}", str(float(text))}
    return any(re.search(rf"(?<![\w.,]){re.escape(one)}(?!\w)", line) for one in shown)
