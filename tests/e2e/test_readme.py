"""What the README tells a user to run, run."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from command_line import mixerloop
from mixerloop import catalog

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands():
    lines = [line.split("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line]


@pytest.mark.slow
def test_the_commands_run_one_after_another(tmp_path):
    ran = [command for command in commands() if command.startswith("mixerloop ")]
    assert len(ran) >= 5
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    for command in ran:
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env={"PATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
    assert (tmp_path / "loops.svg").exists()


def test_every_other_command_is_a_target_of_the_makefile():
    """`.ci/run` runs them."""
    makefile = (ROOT / "Makefile").read_text()
    others = [command for command in commands() if not command.startswith("mixerloop ")]
    assert others == ["make test", "make study"]
    for command in others:
        assert f"\n{command.split()[1]}: setup" in makefile


def test_the_python_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = blocks("python")
    names = {}
    exec(example, names)
    assert names["seen"]["residual"].shape == (2, 128, 128)
    assert names["logits"].shape == (6, 1, 4096)


def test_the_table_is_what_describe_prints():
    done = mixerloop("describe", "15m")
    (shown,) = blocks("text")
    assert [line.rstrip() for line in done.stdout.splitlines()][: len(shown.splitlines())] == [
        line.rstrip() for line in shown.splitlines()
    ]


QUOTED_AS = {
    "no loop": "no_loop",
    "the mixer four times": "mixer_loop",
    "the ffn four times": "ffn_loop",
    "both, layer by layer": "block_loop",
    "the whole stack": "full_loop",
}


def test_the_quick_study_is_quoted_as_it_came_out():
    kept = (ROOT / "docs" / "results" / "quick.md").read_text()
    rows = re.findall(r"^\| (\w+) \|(.*)$", kept, re.MULTILINE)
    screen = README.partition("## Start")[0]
    for label, loop in QUOTED_AS.items():
        (quoted,) = re.findall(rf"^\| {re.escape(label)} \|(.*)$", screen, re.MULTILINE)
        numbers = re.findall(r"\d*\.\d{3,}", quoted)
        assert len(numbers) == 6
        assert any(name == loop and all(one in row for one in numbers) for name, row in rows), loop
    (gain, *ends) = re.findall(r"by (0\.\d+) nats \[(0\.\d+), (0\.\d+)\]", screen)[0]
    (row,) = re.findall(r"no_loop minus mixer_loop \| \+(\S+) \| \+(\S+) to \+(\S+)", kept)
    assert [f"{float(number):.2f}" for number in row] == [gain, *ends]


def test_the_quick_study_is_described_as_it_is():
    kept = (ROOT / "docs" / "results" / "quick.md").read_text()
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


@pytest.mark.parametrize("target", re.findall(r"\]\((?!http)([^)]+)\)", README))
def test_every_link_leads_somewhere(target):
    assert (ROOT / target).exists()
