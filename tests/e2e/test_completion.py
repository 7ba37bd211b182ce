"""Completion in a real shell: what the tab key offers after a command line."""

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
BASH_PROGRAM = shutil.which("bash") or "bash"
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
    for name in ("mine.toml", "mine.txt"):
        (folder / name).touch()

    def offer(*words: str) -> set[str]:
        line = ["mixerloop", *words]
        if shell == "fish":
            asking = f"source {script}; complete -C '{' '.join(line)}'"
            command = ["fish", "--no-config", "-c", asking]
        elif shell == "zsh":
            command = ["zsh", "-f", "-c", ZSH, "zsh", str(script), *line]
        else:
            command = [BASH_PROGRAM, "--norc", "-c", BASH, "bash", str(script), *line]
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
        (["train", "nano-hops", "--train.warm"], {"--train.warmup", "--train.warmup-steps"}),
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


@pytest.mark.parametrize("offered", ["bash"], indirect=True)
def test_bash_completes_values_configs_and_starts_no_program(offered, monkeypatch):
    assert offered("evaluate", "nll", "--documents", "=", "te") == {"test"}
    assert offered("bench", "prefill", "--sizes", "15m", "11") == {"110m"}
    assert offered("train", "mi") == {"mine.toml"}  # and not mine.txt
    monkeypatch.setenv("PATH", "")
    assert offered("tr") == {"train", "transport"}


def test_an_unknown_shell_is_rejected_with_the_known_shells():
    assert "known: bash, zsh, fish" in refused("completion", "tcsh")


def test_a_process_prints_the_same_script():
    assert in_a_process("completion", "bash").stdout == mixerloop("completion", "bash").stdout
