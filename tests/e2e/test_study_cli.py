"""`mixerloop study` and `mixerloop report` as a user runs them."""

import json
import shutil
import subprocess

import pytest

from command_line import COMMAND, environment, mixerloop, refused
from small_model import training_file

ALONE = ("--jobs", "1")  # in this process, cell by cell
ONE_SEED = """
title = "Smaller"
[[parts]]
name = "hops"
config = "small.toml"
prepare = ["hops"]
arms = ["no_loop", "mixer_loop(2)"]
seeds = [1]
measure = ["nll"]
"""
CELL = "hops/mixer_loop(2)-seed1"
LOOPED = "hops/mixer_loop(4)-seed1"

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def place(tmp_path):
    """A folder with a study that was not started."""
    (tmp_path / "small.toml").write_text(training_file(train={"checkpoint_every": 2}))
    (tmp_path / "study.toml").write_text(ONE_SEED)
    return tmp_path


@pytest.fixture
def copied(finished_study, tmp_path):
    """A copy of the finished study, in `whole`."""
    return shutil.copytree(finished_study, tmp_path / "copied")


def states(place, study) -> dict:
    (status,) = json.loads(mixerloop("study", "status", study, "--json", cwd=place).stdout)
    return {cell["name"]: cell for cell in status["cells"]}


def test_from_a_file_to_a_report(finished_study):
    lines = (finished_study / "said").read_text().strip().splitlines()
    assert lines[0] == "A small study"
    assert lines[-1] == "report: whole/report.html"
    for measure in ("held-out NLL", "right answers"):
        assert any(line.startswith(f"hops, {measure}, best first: ") for line in lines)
    study = finished_study / "whole"
    for name in ("report.html", "report.md", "prefill.json", "plan.json"):
        assert (study / name).stat().st_size > 0
    names = {path.stem for path in (study / "figures").glob("*.svg")}
    assert names >= {"hops-curves", "hops-cost", "hops-accuracy", "prefill", "hops-schedules"}
    assert {path.stem for path in (study / "figures").glob("*.csv")} == names - {"hops-schedules"}
    cells = states(finished_study, "whole").values()
    assert [cell["state"] for cell in cells] == ["done"] * 6


@pytest.mark.slow
def test_every_figure_of_a_report_is_drawn(finished_study, tmp_path, monkeypatch):
    monkeypatch.undo()
    ended = mixerloop("report", finished_study / "whole", "--out", "x.html", cwd=tmp_path)
    assert ended.stderr == ""
    for figure in (tmp_path / "x-figures").glob("*.svg"):
        assert len(figure.read_text()) > 1000


def test_what_is_done_is_not_done_again(copied):
    def stamps():
        results = [copied / "whole/prefill.json", *(copied / "whole").rglob("results/*.json")]
        return {path: path.stat().st_mtime_ns for path in results}

    before = stamps()
    shown = mixerloop("study", "study.toml", *ALONE, "--out", "whole", cwd=copied)
    assert stamps() == before
    assert "training" not in shown.stderr


@pytest.mark.parametrize("number", [2, 15])
def test_interrupted_it_says_how_to_go_on(place, signal_in_step, number):
    signal_in_step(number, 3)
    ended = mixerloop("study", "study.toml", *ALONE, "--out", "out", cwd=place, code=128 + number)
    assert ended.stderr.count("stopped; the same command goes on from here") == 1
    assert (place / "out/hops/no_loop-seed1/checkpoints/step-3").is_dir()
    assert states(place, "out")["hops/no_loop-seed1"]["state"] == "begun"


def test_a_cell_that_fails_is_named_and_the_rest_go_on(copied, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("no memory for so long a prompt")

    monkeypatch.setattr("mixerloop.studies.cells.bench_prefill", fails)
    study = copied / "whole"
    (study / "prefill.json").unlink()
    (study / "report.html").unlink()
    other = "hops/deeper-seed1"
    for name in (LOOPED, other):
        (study / name / "results/nll.json").unlink()
    weights = study / LOOPED / "checkpoints/step-4/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    ended = mixerloop("study", "study.toml", *ALONE, "--out", "whole", cwd=copied, code=1)
    assert f"failed: {LOOPED}" in ended.stdout
    assert "prefill: failed: " in ended.stderr
    assert "; start again" in ended.stdout
    assert (study / other / "results/nll.json").exists()
    cells = states(copied, "whole")
    assert (cells[LOOPED]["state"], cells[other]["state"]) == ("failed", "done")
    assert "model.safetensors" in cells[LOOPED]["error"]
    assert (study / "report.html").is_file()


def test_the_plan_comes_first_and_a_dry_run_writes_nothing(place):
    shown = mixerloop("study", "study.toml", "--out", "dry", "--dry-run", cwd=place).stdout
    assert "2 cells, kept in dry" in shown
    assert "expected: " in shown
    assert not (place / "dry").exists()


@pytest.mark.slow
def test_cells_can_be_picked_and_are_run_by_one_process_only(place):
    mixerloop("study", "study.toml", "--out", "picked", "--cells", "1", cwd=place)
    assert [cell["state"] for cell in states(place, "picked").values()] == ["done", "waiting"]
    assert not (place / "picked/report.html").exists()
    both = [
        subprocess.Popen(
            [*COMMAND, "study", "study.toml", *ALONE, "--out", "picked", "--cells", "2"],
            cwd=place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(place),
        )
        for _ in range(2)
    ]
    said = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(f"{CELL}: training" in text for text in said) == 1


def test_over_several_seeds_an_interval_is_students(finished_study):
    study = finished_study / "whole"
    page = (study / "report.md").read_text()
    first, second = (
        json.loads((study / f"hops/no_loop-seed{seed}/results/nll.json").read_text())["nll"][
            "value"
        ]
        for seed in (1, 2)
    )
    mean, half = (first + second) / 2, 12.706 * abs(first - second) / 2
    assert f"| {mean:.4f} [{mean - half:.4f}, {mean + half:.4f}] |" in page
    assert "Intervals are of 95 %, over seeds (Student's t)." in page
    assert "2 and 2 seeds: the interval is over seeds and examples" in page
    assert "corrected by Holm's method for all differences on this page" in page
    assert page.count("| two seeds: no verdict |") == 3 * 2


def test_the_deeper_control_is_told_apart(finished_study):
    page = (finished_study / "whole/report.md").read_text()
    assert (
        "2 models of 2 layers, width 16, on hops; seeds 1, 2. Each has 5,672 parameters. " in page
    )
    same = "Models of one seed see the same 624 tokens in the same order, at different costs."
    assert same in page
    assert "Besides, deeper has " in page
    plan = json.loads((finished_study / "whole/plan.json").read_text())
    _, looped, deeper = plan["rows"][:3]
    assert deeper["flops_per_token"] == pytest.approx(looped["flops_per_token"], rel=0.05)
    assert deeper["parameters"] > looped["parameters"]


def test_a_report_of_runs_needs_no_study_and_takes_seeds_together(copied):
    names = [f"whole/hops/{arm}-seed{seed}" for arm in ("no_loop", "deeper") for seed in (1, 2)]
    shown = mixerloop("report", *names, "--out", "apart/four.html", cwd=copied).stdout
    assert shown.strip().splitlines()[-1] == "report: apart/four.html"
    page = (copied / "apart/four.md").read_text()
    assert "nothing says that they are matched" in page
    table, _, births = page.partition("## Where every number")
    assert "| no_loop-seed1 | 2 |" in table
    assert "| no_loop-seed2 |" not in table
    assert "no_loop-seed2" in births
    assert (copied / "apart/four-figures").is_dir()


def test_two_studies_make_one_report_without_a_cell_that_was_not_measured(copied):
    shutil.copytree(copied / "whole", copied / "partly")
    (copied / "partly/hops/deeper-seed2/results/hops.json").unlink()
    mixerloop("report", "whole", "partly", "--out", "all/both.html", cwd=copied)
    page = (copied / "all/both.md").read_text()
    for heading in ("## whole-hops: results", "## partly-hops: results", "## Whole, prefill"):
        assert heading in page
    assert "whole-hops, held-out NLL, best first: " in page
    assert "Not finished, and so not in here: " in page
    assert "hops/deeper-seed2." in page
    assert "| deeper | 1 |" in page


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["study"], "name a study, such as quick"),
        (["study", "nowhere.toml"], "nowhere.toml: there is no such file"),
        (["study", "study.toml", "--cells", "3"], "cells are numbers from 1 to 2"),
        (["study", "status", "nowhere"], "nowhere: not the folder of a study"),
        (["report"], "name a study's folder, or runs"),
        (["report", "nowhere", "--out", "x.html"], "nowhere: neither a study's folder nor a run"),
        (["report", "nowhere", "--out", "x.pdf"], "x.pdf: a page ends in .html"),
    ],
)
def test_what_cannot_be_done_is_refused(place, arguments, named):
    assert named in refused(*arguments, cwd=place)


def study_refused(*arguments, cwd) -> str:
    """The error line of a study, before its plan is shown or after."""
    (line,) = mixerloop("study", *arguments, cwd=cwd, code=2).stderr.splitlines()
    return line


def test_a_study_that_changed_does_not_mix_with_what_was_trained(copied):
    study = (copied / "study.toml").read_text()
    for old, new, named in (
        ("[prefill]", "[parts.train]\nsteps = 9\n[prefill]", "was trained with train.steps 4"),
        ("windows = 2", "windows = 5", "was made with transport"),
        ("repeats = 2", "repeats = 3", "prefill.json: was measured with"),
        ('prepare = ["hops"]', 'prepare = ["hops", "--seed", "5"]', "was made with data hops"),
    ):
        assert study.count(old) == 1
        (copied / "changed.toml").write_text(study.replace(old, new))
        assert named in study_refused("changed.toml", "--out", "whole", cwd=copied)


def test_data_of_the_users_files_stays_with_these_files(place):
    for name in ("one", "two"):
        lines = [json.dumps({"text": f"{name} tale of {n} words. " * 20}) for n in range(40)]
        (place / f"{name}.jsonl").write_text("\n".join(lines))
    prepare = 'prepare = ["text", "{corpus}", "--vocab-size", "300", "--held-out-share", "0.2"]'
    text = ONE_SEED.replace('prepare = ["hops"]', prepare + "\nmodel = { vocab_size = 300 }")
    (place / "text.toml").write_text(text + "[parts.data]\ncontext = 16\n")
    study = ("text.toml", "--out", "text", "--cells", "1")
    line = study_refused(*study, cwd=place)
    assert "text.toml, line 6: this data needs files of yours: --corpus FILE" in line
    assert "no.txt" in study_refused(*study, "--corpus", "no.txt", cwd=place)
    assert not (place / "text/hops").exists()
    mixerloop("study", *study, "--corpus", "one.jsonl", cwd=place)
    line = study_refused(*study, "--corpus", "two.jsonl", cwd=place)
    assert "was made of other files (" in line
    mixerloop("study", *study, cwd=place)


def test_a_plan_of_another_kind_is_named(place):
    (place / "foreign").mkdir()
    for text in ("[]", "{}", '{"parts": 3}', '{"title": ""'):
        (place / "foreign/plan.json").write_text(text)
        for verb in (["study", "status"], ["report"], ["study", "study.toml", "--out"]):
            assert "foreign/plan.json: " in refused(*verb, "foreign", cwd=place)
