"""Errors of the command line: one line that names the word, the near name and the help to read."""

import os
import subprocess
import sys

import pytest

from command_line import COMMAND, environment, refused
from mixerloop.cli.main import Verb
from mixerloop.cli.options import parse
from mixerloop.cli.verb_tree import tree_of
from mixerloop.files import check_is_new
from mixerloop.messages import printable

VAST = 10**30


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a verb: describe, data, train"),
        (["describ", "15m"], "unknown verb 'describ'; did you mean describe? known: describe, "),
        (["bench", "trai"], "bench: unknown verb 'trai'; did you mean train? known: operator, "),
        (["data", "prepare"], "data prepare: name a verb: climbmix, text, stdlib, hops"),
        (["--verison"], "unknown option --verison; did you mean --version? see mixerloop --help"),
        (
            ["describe", "15m", "--jsno"],
            "describe: unknown option --jsno; did you mean --json? see mixerloop describe --help",
        ),
        (
            ["train", "x.toml", "--train.step=3"],
            "train: unknown option --train.step; did you mean --train.steps? ",
        ),
        (["describe", "15m", "a\nb"], "describe: 'a b' belongs to no option; "),
        (["init"], "init: give SIZE and --out PATH; see mixerloop init --help"),
        (["generate", "run", "--max-tokens"], "--max-tokens needs a value; "),
        (["generate", "run", "--max-tokens", "1e3"], "--max-tokens: '1e3' is not a whole number"),
        (["generate", "run", "--temperature", "x"], "--temperature: 'x' is not a number"),
        (["train", "x.toml", "--train.seed", "x"], "--train.seed: 'x' is not a whole number"),
        (["bench", "prefill", "--batches", "1", "x"], "--batches: 'x' is not a whole number; "),
        (
            ["bench", "prefill", "--compute-dtype", "float3"],
            "--compute-dtype: unknown value 'float3'; did you mean float32? known: float32, bfl",
        ),
        (["--tyro-print-completion", "sh"], "unknown option --tyro-print-completion; see "),
        (["train"], "name a config to train, or a run to go on with: --resume RUN"),
        (["evaluate", "nll"], "evaluate nll: give RUN; see mixerloop evaluate nll --help"),
        (["evaluate", "nll", "x", "--json", "yes"], "evaluate nll: 'yes' belongs to no option"),
        (["bench", "--repeats"], "bench: name a verb before --repeats: operator, prefill, "),
        (["bench", "--repaets"], "bench: unknown option --repaets; see mixerloop bench --help"),
        (["completion", "bsh"], "completion: shell: unknown value 'bsh'; did you mean bash? "),
        (
            ["train", "x", "--model.norm-placement", "pst"],
            "--model.norm-placement: unknown value 'pst'; did you mean post? known: pre, post, ",
        ),
    ],
)
def test_an_error_of_the_command_line_is_one_line_with_the_near_name(arguments, said, tmp_path):
    assert refused(*arguments, cwd=tmp_path).startswith(f"mixerloop: {said}")


VERBS = [verb for verb in tree_of(Verb).walk() if verb.path]


def of_each_kind():
    """An option of each kind that the parser distinguishes, under verbs of one and two words."""
    options = {}
    for verb in (verb for verb in VERBS if not verb.verbs):
        has_names = any(option.is_positional for option in verb.options)
        for option in (option for option in verb.options if not option.is_positional):
            value = (option.is_flag, option.number, bool(option.choices))
            kind = (len(verb.path), "." in option.name, has_names, *value)
            options.setdefault(
                kind, pytest.param(verb, option, id=" ".join((*verb.path, option.name)))
            )
    return list(options.values())


def error(*arguments) -> str:
    """The error of a command line, without the verb's run."""
    with pytest.raises(ValueError, match=r".") as caught:
        parse(Verb, arguments, about="")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "verb",
    [verb for verb in VERBS if verb.verbs or verb.path in {("train",), ("evaluate", "nll")}],
    ids=lambda verb: " ".join(verb.path),
)
def test_a_verb_rejects_unknown_options_and_verbs_with_the_nearest_name(verb):
    near = verb.option_names[0]
    where = " ".join(verb.path)
    assert f"{where}: unknown option --jsnx; " in error(*verb.path, "--jsnx")
    assert (
        f"{where}: unknown option {near}x; did you mean {near}? see mixerloop {where} --help"
        in (error(*verb.path, f"{near}x"))
    )
    if verb.verbs:
        assert error(*verb.path) == f"{where}: name a verb: {', '.join(verb.names)}"
        assert f"did you mean {verb.names[0]}? " in error(*verb.path, f"{verb.names[0]}x")


@pytest.mark.parametrize(("verb", "option"), of_each_kind())
def test_an_option_needs_a_value_of_its_type(verb, option):
    see = f"; see mixerloop {' '.join(verb.path)} --help"
    if option.is_flag:
        assert error(*verb.path, f"{option.name}=1") == f"{option.name} takes no value{see}"
        return
    assert error(*verb.path, option.name) == f"{option.name} needs a value{see}"
    if option.number is not None:
        what = "a whole number" if option.number is int else "a number"
        before = ["name"] * any(other.is_positional for other in verb.options)
        line = error(*verb.path, *before, option.name, "x")
        assert line == f"{option.name}: 'x' is not {what}{see}"
    if option.choices:
        line = error(*verb.path, option.name, f"{option.choices[0]}x")
        assert f"did you mean {option.choices[0]}? known: {', '.join(option.choices)}" in line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["init", "nano", "--out", ""], "out"),
        (["describe", ""], "size"),
        (["report", ""], "paths"),
        (["generate", "", "--prompt", "x"], "run"),
        (["train", "x.toml", "--data.path", ""], "data.path"),
        (["import", "", "--out", "x"], "folder"),
    ],
)
def test_an_empty_name_is_not_this_folder(arguments, named, tmp_path):
    assert refused(*arguments, cwd=tmp_path) == f"mixerloop: {named}: is empty"


def test_this_folder_may_be_named_beside_an_empty_text(tmp_path):
    assert "is empty" not in refused("generate", ".", "--prompt", "", cwd=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench", "operator", "--repeats", VAST], "repeats must be at most 1,000,000"),
        (["bench", "prefill", "--batches", 0], "batches must be at least 1"),
        (["bench", "prefill", "--batches", VAST], "batches must be at most 1,000,000"),
        (["bench", "prefill", "--batches", 10**6], "1,024,000,000 tokens need"),
        (["bench", "train", "--batch", 10**6, "--size", "nano"], "batch = 1,000,000, length"),
        (["bench", "train", "--length", VAST], "length must be at most 1,000,000"),
        (["bench", "transport", "--context", -1], "context must be at least 1"),
        (["bench", "transport", "--context", 8], "which has room for 3"),
        (["bench", "transport", "--positions", 0], "positions must be at least 1"),
        (["bench", "core", "--examples", VAST], "examples must be at most 1,000,000"),
        (["transport", "x", "--context", VAST], "context must be from 1 to"),
        (["transport", "x", "--seed", -1], "seed must be from 0"),
        (["study", "x.toml", "--cells", VAST], "cells are numbers, such as 3,7"),
    ],
)
def test_a_number_that_no_machine_can_serve_is_named(arguments, said, tmp_path):
    assert said in refused(*arguments, cwd=tmp_path)


@pytest.mark.parametrize("key", ["d_model", "num_heads", "d_head", "d_ffn"])
def test_a_size_that_does_not_fit_the_memory_is_named_with_its_value(key, tmp_path):
    config = tmp_path / "large.toml"
    config.write_text(f'[model]\npreset = "nano"\n{key} = {2**24}\n')
    line = refused("describe", "large.toml", cwd=tmp_path)
    assert f"model.{key} = 16,777,216" in line
    assert "of memory, and" in line
    assert list(tmp_path.iterdir()) == [config]


def test_sizes_whose_product_no_computer_can_count_are_named(tmp_path):
    config = tmp_path / "large.toml"
    keys = "".join(f"{key} = {2**24}\n" for key in ("d_model", "num_heads", "d_head"))
    config.write_text(f'[model]\npreset = "nano"\n{keys}')
    for verb in (["describe"], ["init", "--out", "run"]):
        line = refused(verb[0], "large.toml", *verb[1:], cwd=tmp_path)
        assert "model.d_head = 16,777,216" in line


def test_more_layers_than_a_machine_can_make_are_named(tmp_path):
    config = tmp_path / "deep.toml"
    config.write_text(f'[model]\npreset = "nano"\nschedule = "no_loop"\nnum_layers = {2**24}\n')
    assert "model.num_layers must be from 1 to 2,000" in refused("describe", config, cwd=tmp_path)


def test_help_is_printed_in_every_encoding():
    variables = environment(".") | {"PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run([*COMMAND, "init", "--help"], capture_output=True, env=variables)
    assert done.returncode == 0, done.stderr
    assert b"usage: mixerloop init" in done.stdout


def test_a_width_that_no_terminal_has_is_not_used():
    script = """
import os
from mixerloop import start
for width in ("0", "-7", "19", "1001", "wide", "", "\N{SUPERSCRIPT TWO}", "9" * 30):
    os.environ["COLUMNS"] = os.environ["LINES"] = width
    start.begin()
    assert not {"COLUMNS", "LINES"} & os.environ.keys(), width
for width in ("20", "1000"):
    os.environ["COLUMNS"] = width
    start.begin()
    assert os.environ["COLUMNS"] == width
"""
    subprocess.run([sys.executable, "-c", script], check=True, env=environment("."))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("b\udcff", "not text in utf-8"),
        ("a\nb", "has a control character"),
        ("a\x1b[31mb", "has a control character"),
        ("a\x9bb", "has a control character"),
        ("a\u202eb", "has a control character"),
    ],
)
@pytest.mark.parametrize(
    "verb",
    [["train", "nano-hops"], ["init", "nano"], ["study", "quick"], ["data", "prepare", "hops"]],
)
def test_a_new_name_that_cannot_be_typed_is_rejected_before_the_work(verb, name, problem, tmp_path):
    line = refused(*verb, "--out", name, cwd=tmp_path)
    assert line == f"mixerloop: --out {printable(repr(name))}: {problem_text(problem)}"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=problem):
        check_is_new(tmp_path / name)


def problem_text(problem):
    where = ", which this locale has for file names" if "utf-8" in problem else ""
    return f"{problem}{where}; choose another name"


def test_in_the_locale_c_the_option_of_a_name_is_named(tmp_path):
    ended = subprocess.run(
        [*COMMAND, "train", "nano-hops", "--out", "ä"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**environment(tmp_path), "LC_ALL": "C", "PYTHONUTF8": "0"},
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("mixerloop: --out '")
    assert "not text in" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_control_characters_and_broken_names_are_escaped_in_an_error(tmp_path):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/a\x1b[31m\xff\xe2\x80\xae.toml")
    line = refused("describe", name, cwd=tmp_path)
    assert "a\\x1b[31m\\udcff\\u202e.toml: there is no such file" in line
