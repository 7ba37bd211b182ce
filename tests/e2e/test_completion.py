"""Completion in a real shell: what the tab key offers after a command line."""

import os
import shutil
import subprocess

import pytest

import needs
from command_line import in_a_process, mixerloop, refused
from mixerloop import catalog
from mixerloop.cli.completion_scripts import SHELLS
from mixerloop.cli.main import Verb
from mixerloop.cli.verb_tree import tree_of

BASH = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_mixerloop 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""
"""Calls the function as bash calls it; `compopt` only works within a real completion."""
ZSH = """
compdef() { : }
compadd() { shift; print -l -- "$@" }
_files() { print FILES }
compset() { : }
source "$1"; shift
words=("$@") CURRENT=$# PREFIX=${@[-1]}
_mixerloop | grep -- "^$PREFIX" || true
"""
"""zsh completes only in a terminal: the functions that offer names print them here."""


@pytest.fixture(scope="module", params=SHELLS)
def offered(request, tmp_path_factory):
    """A function from the words of a command line to the names that a shell offers for the last."""
    shell = request.param
    needs.SHELLS[shell].or_skip()
    folder = tmp_path_factory.mktemp("completion")
    script = folder / f"mixerloop.{shell}"
    script.write_text(mixerloop("completion", shell).stdout)
    (folder / "runs").mkdir()
    (folder / "mine.toml").touch()

    def offer(*words: str) -> set[str]:
        line = ["mixerloop", *words]
        if shell == "fish":
            asking = f"source {script}; complete -C '{' '.join(line)}'"
            command = ["fish", "--no-config", "-c", asking]
        elif shell == "zsh":
            command = ["zsh", "-f", "-c", ZSH, "zsh", str(script), *line]
        else:
            command = ["bash", "--norc", "-c", BASH, "bash", str(script), *line]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return {one.partition("\t")[0] for one in done.stdout.splitlines() if one}

    return offer


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["tr"], {"train", "transport"}),
        (["data", "pre"], {"prepare"}),
        (["data", "prepare", "st"], {"stdlib"}),
        (["bench", "tr"], {"train", "transport"}),
        (["evaluate", "nll", "--do"], {"--documents"}),
        (["evaluate", "nll", "--documents", ""], {"all", "tuning", "test"}),
        (["evaluate", "nll", "--json", "--form", "na"], {"native"}),
        (["bench", "prefill", "--sizes", "11"], {"110m"}),
        (["train", "nano-hops", "--schedule", "ff"], {"ffn_loop"}),
        (["train", "nano-hops", "--train.seq"], set()),
        (["train", "nano-hops", "--train.warm"], {"--train.warmup-steps"}),
        (["train", "nano-h"], {"nano-hops"}),
        (["completion", "f"], {"fish"}),
    ],
)
def test_a_word_is_completed(offered, words, names):
    assert offered(*words) == names


def test_verbs_configs_and_studies_are_offered(offered):
    assert offered("") == set(tree_of(Verb).names)
    assert offered("train", "") >= set(catalog.config_names())
    assert offered("study", "") >= {"status", *catalog.study_names()}


@pytest.fixture
def in_bash(tmp_path):
    """A function from the words of a command line to what bash offers in this folder."""
    script = tmp_path / "script"
    script.write_text(mixerloop("completion", "bash").stdout)

    def offer(*words: str, **variables: str) -> list[str]:
        bash = shutil.which("bash")
        assert bash is not None
        done = subprocess.run(
            [bash, "--norc", "-c", BASH, "bash", script, "mixerloop", *words],
            cwd=tmp_path,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
        )
        return done.stdout.split()

    return offer


def test_bash_takes_a_value_behind_an_equals_sign_apart(in_bash):
    assert in_bash("evaluate", "nll", "--documents", "=", "te") == ["test"]


def test_a_second_value_is_offered_where_there_can_be_many(in_bash):
    assert in_bash("bench", "prefill", "--sizes", "15m", "11") == ["110m"]


def test_files_are_offered_where_a_config_can_be_one(in_bash, tmp_path):
    for name in ("mine.toml", "mine.txt"):
        (tmp_path / name).touch()
    assert in_bash("train", "mi") == ["mine.toml"]


def test_a_press_of_the_tab_key_starts_no_program(in_bash):
    assert in_bash("tr", PATH="") == ["train", "transport"]


def test_an_unknown_shell_is_rejected_with_the_known_shells():
    assert "known: bash, zsh, fish" in refused("completion", "tcsh")


def test_a_process_prints_the_same_script():
    assert in_a_process("completion", "bash").stdout == mixerloop("completion", "bash").stdout
