import shlex
import subprocess
from pathlib import Path

import pytest

from mixerloop.messages import one_line, printable, shell_word, shown
from mixerloop.progress_line import ProgressLine, to_stderr
from mixerloop.start import Output
from mixerloop.text_tables import table_of, text_of
from mixerloop.training.run_table import runs_text
from mixerloop.training.status import Status


def test_a_message_of_several_lines_is_one_line():
    assert one_line("first\n  second\r\n\n third ") == "first second third"


def test_spaces_in_a_name_are_kept():
    assert one_line("a  b.toml: gone") == "a  b.toml: gone"


def test_a_long_message_is_cut():
    assert one_line("x" * 2000) == "x" * 997 + "..."


def test_whatever_a_terminal_would_not_print_is_escaped():
    assert printable("a\tb\x1b[0m\x9b\u202e\udcff") == "a\\tb\\x1b[0m\\x9b\\u202e\\udcff"
    assert printable("é 日本語") == "é 日本語"


HOSTILE = ("\x7f", "\x9b", "\u202e", "\x1b]0;x\x07", "\x1b[31;5m", "\r", "\x08", "\u2028")


def to_stdout(name, tmp_path):
    with (tmp_path / "said").open("wb") as file, Output(file.fileno(), "stdout", like=None) as out:
        out.shows = shown
        out.write(f"{name}: 4 steps\n")
    return (tmp_path / "said").read_bytes().decode()


def on_stderr(write):
    def said(name, capsys):
        write(f"{name}: 4 steps")
        return capsys.readouterr().err

    return said


def in_a_table(name, _):
    table = table_of("cell", "name")
    table.add_row("1", name)
    return text_of(table)


def in_the_list_of_runs(name, _):
    return runs_text([Status(run=name, state="stopped")])


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(
    "said",
    [
        on_stderr(to_stderr),
        on_stderr(lambda text: ProgressLine().say(text)),
        on_stderr(lambda text: ProgressLine().begin(text)),
        on_stderr(lambda text: ProgressLine().show(text)),
        in_a_table,
        in_the_list_of_runs,
        to_stdout,
    ],
)
def test_no_name_moves_a_cursor_or_reorders_text(said, name, capsys, tmp_path):
    text = said(f"a{name}b", tmp_path if said is to_stdout else capsys)
    assert printable(f"a{name}b") in text
    assert all(line.isprintable() for line in text.split("\n"))


def test_tables_keep_their_lines_and_colours():
    text = "\x1b[1mrun\x1b[0m\t\x1b[1;2;36m4\x1b[0mstate\nä\xa0\u200d b\n"
    assert shown(text) == text


@pytest.mark.parametrize("name", ["-x", "a b", "it's", "a\x1b[31m'\\\n\udcff", "é", "plain"])
def test_a_name_can_be_pasted_into_a_shell(name, tmp_path):
    word = shell_word(name)
    assert word.isprintable()
    script = f"mkdir -- {word}" if name == "-x" else f"mkdir {word}"
    subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert shlex.split(shell_word("-x")) == ["./-x"]
    assert shell_word(Path("runs/a")) == "runs/a"
