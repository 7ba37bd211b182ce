"""What the README tells a user to run, run."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from command_line import mixerloop
from mixerloop import catalog, notation

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
RESULTS = ROOT / "docs" / "results"
MOST_WORDS = 700


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands():
    lines = [line.split("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line]


def run(command, folder):
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={"PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


def shown_after(command):
    """The output that the README shows for a command."""
    after = README.partition(f"```sh\n{command}\n```")[2]
    return re.findall(r"\A\s*```text\n(.*?)```", after, re.DOTALL)[0].splitlines()


def assert_same_figures(shown, printed, *, to):
    """The same words, and numbers that differ by rounding at most: CPUs round differently."""
    assert len(shown) == len(printed)
    for expected, word in zip(shown, printed, strict=True):
        try:
            number = float(expected)
        except ValueError:
            assert word == expected
        else:
            assert float(word) == pytest.approx(number, abs=to)


@pytest.mark.slow
def test_the_commands_print_what_is_shown(tmp_path):
    describe, train, transport = (line for line in commands() if line.startswith("mixerloop "))
    assert run(describe, tmp_path).startswith("\n".join(shown_after(describe)))

    (last,) = shown_after(train)
    (ended,) = (line for line in run(train, tmp_path).splitlines() if line.startswith("runs/"))
    assert_same_figures(re.split("[ ,]+", last), re.split("[ ,]+", ended), to=0.01)

    table = shown_after(transport)
    printed = run(transport, tmp_path).splitlines()
    start = printed.index(table[0])
    rounding = 7  # the column that differs from CPU to CPU, and nothing else does
    for line, row in zip(table[1:], printed[start + 1 :], strict=False):
        words, others = line.split(), row.split()
        assert_same_figures(words[:6] + words[rounding:], others[:6] + others[rounding:], to=0.005)


def test_every_other_command_is_run_by_the_checks():
    """`.ci/run` runs the targets; the wheel's test and `make setup` install the package."""
    makefile = (ROOT / "Makefile").read_text()
    others = [command for command in commands() if not command.startswith("mixerloop ")]
    assert others == ["make study", "make test", "pip install .", ". .venv/bin/activate"]
    for command in others[:2]:
        assert f"\n{command.split()[1]}: setup" in makefile
        assert re.search(rf"make [a-z ]*{command.split()[1]}\b", (ROOT / ".ci" / "run").read_text())


@pytest.mark.slow
def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = blocks("python")
    assert len(example.strip().splitlines()) <= 8
    exec(example, {})
    nll, gain = capsys.readouterr().out.splitlines()[-2:]
    assert "Estimate" in nll
    assert "Estimate" in gain


def test_the_examples_with_a_pretrained_model_have_options_that_exist():
    (example,) = (block for block in blocks("text") if "mixerloop import" in block)
    lines = example.replace("\\\n", "").splitlines()
    commands = [line for line in lines if not line.startswith("# ")]
    assert [command.split()[1] for command in commands] == ["import", "data", "evaluate", "train"]
    for command in commands:
        verb = [word for word in command.split()[1:4] if word in VERBS]
        help_text = mixerloop(*verb, "--help").stdout
        for option in re.findall(r"--[a-z-]+", command):
            assert option in help_text, command


VERBS = ("import", "data", "prepare", "text", "evaluate", "nll", "train")


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("6x(A F)", "no_loop"),
        ("6x(A4 F)", "mixer_loop"),
        ("6x(A F4)", "ffn_loop"),
        ("6x((A F)4)", "block_loop"),
        ("4x(6x(A F))", "full_loop"),
    ],
)
def test_the_notation_means_what_is_said(text, loop):
    assert f"`{text}`" in README
    assert notation.parse(text) == notation.resolve(loop, num_layers=6)


def test_it_is_short():
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    prose = re.sub(r"^\|.*$|^!\[.*$", "", prose, flags=re.MULTILINE)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    assert len(re.findall(r"[A-Za-z0-9][\w.'-]*", prose)) <= MOST_WORDS


QUOTED_AS = {
    "`no_loop`: the baseline": "no_loop",
    "`mixer_loop`: the mixer four times": "mixer_loop",
    "`ffn_loop`: the ffn four times": "ffn_loop",
    "`block_loop`: both, layer by layer": "block_loop",
    "`full_loop`: the whole stack": "full_loop",
}


def test_the_quick_study_is_quoted_as_it_came_out():
    kept = (RESULTS / "quick.md").read_text()
    rows = re.findall(r"^\| (\w+) \|(.*)$", kept, re.MULTILINE)
    for label, loop in QUOTED_AS.items():
        (quoted,) = re.findall(rf"^\| {re.escape(label)} \|(.*)$", README, re.MULTILINE)
        numbers = re.findall(r"\d*\.\d{3,}", quoted)
        assert len(numbers) == 6
        assert any(name == loop and all(one in row for one in numbers) for name, row in rows), loop
    said = r"(0\.\d+) nats \[(0\.\d+), (0\.\d+)\], corrected p = (\.\d+)"
    ((*lead, corrected),) = re.findall(said, " ".join(README.split()))
    numbers = r"\+(\S+) \| \+(\S+) to \+(\S+) \| \S+ \| (\S+) "
    ((*row, holm),) = re.findall(r"no_loop minus mixer_loop \| " + numbers, kept)
    assert [f"{float(number):.2f}" for number in row] == lead
    assert holm == corrected
    (holm,) = re.findall(r"mixer_loop minus ffn_loop \|[^|]*\|[^|]*\|[^|]*\| (\S+) \|", kept)
    assert f"is resolved, p = {holm} " in " ".join(README.split())
    assert re.findall(
        r"^\| a guess.*?\| (\.\d+) \| (\.\d+) \| (\.\d+) \|", README, re.MULTILINE
    ) == (re.findall(r"^\| a guess.*?\| (\.\d+) \| (\.\d+) \| (\.\d+) \|", kept, re.MULTILINE))
    resolved = re.findall(r"^\| (\w+) minus (\w+) .*\*\*resolved\*\* \|$", kept, re.MULTILINE)
    assert resolved == [("mixer_loop", "ffn_loop")]


def test_the_regime_study_is_quoted_as_it_came_out():
    kept = " ".join((RESULTS / "regime.md").read_text().split())
    text = " ".join(README.split())
    assert "| 40.6 |" in kept
    assert "Up to 41 training tokens a parameter" in text
    leads = re.findall(r"- no loop, by (0\.\d+),? (?:nats, )?of the mixer loop of two passes", kept)
    assert f"by {' and '.join(f'{float(lead):.2f}' for lead in leads)} nats" in text
    gains = re.findall(
        r"\| (?:tiny|small), mixer_loop \| \d\.\d+ \[[^|]*\|[^|]*\|[^|]*\| \+(\d\.\d+)", kept
    )
    assert f"gain {' and '.join(f'{float(gain):.2f}' for gain in gains)} nats" in text


def test_the_quick_study_is_described_as_it_is():
    kept = (RESULTS / "quick.md").read_text()
    hops, text = tomllib.loads(catalog.study_text("quick"))["parts"]
    assert f"{hops['train']['tokens']:,} tokens in batches of {hops['train']['global_batch']}" in (
        " ".join(kept.split())
    )
    assert f"{text['train']['tokens']:,} tokens, which are 27 a parameter" in " ".join(kept.split())
    rates = {arm["schedule"]: arm["train"]["peak_lr"] for arm in hops["arms"]}
    columns = [1e-3, 2e-3, 4e-3]
    sweep = kept.partition("## The learning rates")[2]
    for loop, rate in rates.items():
        (row,) = re.findall(rf"^\| {loop} \|(.*)$", sweep, re.MULTILINE)
        bold = [index for index, cell in enumerate(row.split("|")[:3]) if "**" in cell]
        assert [columns[index] for index in bold] == [rate], loop
