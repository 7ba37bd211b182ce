"""The examples in the help of every verb: each parses, and a selection of them runs."""

import itertools
import re
import shlex

import pytest

from command_line import in_a_process, mixerloop, refused
from mixerloop.cli import main
from mixerloop.cli.options import parse
from mixerloop.cli.overview import EXAMPLES
from mixerloop.cli.verb_tree import tree_of
from small_model import training_file

TREE = tree_of(main.Verb, about=main.HELP)
VERBS = [pytest.param(verb, id=" ".join(verb.path) or "mixerloop") for verb in TREE.walk()]
RUN = "runs/small"
RUNNING = [
    "mixerloop describe nano",
    "mixerloop describe 15m --picture loops.svg",
    "mixerloop describe RUN --json",
    *(f"mixerloop data prepare {task} --out data/{task}" for task in ("recall", "brackets")),
    "mixerloop data prepare stdlib --vocab-size 2048 --workers 2 --out data/stdlib-2k --json",
    "mixerloop configs",
    "mixerloop configs nano-hops > mine.toml",
    "mixerloop init mine.toml --out runs/mine",
    "mixerloop init nano --out runs/fresh",
    "mixerloop studies quick > mine.toml",
    "mixerloop study quick --dry-run",
    "mixerloop runs",
    "mixerloop evaluate nll RUN",
    "mixerloop evaluate hops RUN",
    "mixerloop evaluate task RUN",
    'mixerloop evaluate hops RUN --schedule "mixer_loop(2)" --json',
    "mixerloop transport RUN",
    "mixerloop transport RUN --control --removal",
    "mixerloop export RUN --to hf --out exported",
    "mixerloop completion fish > ~/.config/fish/completions/mixerloop.fish",
    "mixerloop bench decode --size nano --schedule full_loop",
    "mixerloop doctor --json",
    "mixerloop --version",
]
"""Examples that need no download and take seconds; RUN is a small model trained on hops."""


def examples(verb) -> list[str]:
    return [line.strip() for line in verb.about.partition(EXAMPLES)[2].splitlines() if line.strip()]


ALL = list(itertools.chain.from_iterable(examples(verb) for verb in TREE.walk()))


def words_of(example: str) -> list[str]:
    """The arguments of `mixerloop` in an example, without what belongs to the shell."""
    command, _, _ = example.partition(" > ")
    words = shlex.split(command)
    return words[words.index("mixerloop") + 1 :]


@pytest.mark.parametrize("verb", VERBS)
def test_every_help_has_examples_of_its_verb_that_parse(verb):
    lines = examples(verb)
    assert lines
    for line in lines:
        assert line.startswith(("mixerloop ", "torchrun ")), line
        words = words_of(line)
        assert tuple(words[: len(verb.path)]) == verb.path
        if words != [main.VERSION]:
            parse(main.Verb, words, about="")


@pytest.mark.parametrize("verb", VERBS)
def test_every_help_prints_its_examples(verb):
    printed = mixerloop(*verb.path, "--help").stdout
    for line in examples(verb):
        assert line in printed


@pytest.mark.parametrize("path", [[], ["data"], ["data", "prepare"], ["evaluate"], ["bench"]])
def test_the_help_of_a_verb_with_verbs_fits_a_screen(path):
    printed = mixerloop(*path, "--help").stdout
    verb = TREE.at(path)
    assert len(printed.splitlines()) < 50
    assert mixerloop(*path, "-h").stdout == printed
    assert re.findall(r"^  ([a-z]+)  ", printed, re.MULTILINE) == verb.names


def test_help_after_an_unknown_verb_is_an_error():
    assert "unknown verb 'trian'; did you mean train?" in refused("trian", "--help")


@pytest.mark.slow
def test_examples_run(tmp_path):
    (tmp_path / "small.toml").write_text(training_file("data/hops"))
    mixerloop("data", "prepare", "hops", "--out", "data/hops", cwd=tmp_path)
    mixerloop("train", "small.toml", "--out", RUN, cwd=tmp_path)
    for example in RUNNING:
        assert example in ALL
        command, _, file = example.replace("RUN", RUN).partition(" > ")
        run = in_a_process if "stdlib" in command else mixerloop  # it starts workers
        ended = run(*words_of(command), cwd=tmp_path)
        if file and not file.startswith("~"):
            (tmp_path / shlex.split(file)[0]).write_text(ended.stdout)
