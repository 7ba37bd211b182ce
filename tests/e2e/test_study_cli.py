"""`mixerloop study` as a user runs it: planned, killed, started again, reported."""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from command_line import COMMAND, environment, mixerloop, refused
from saved_results import as_printed
from small_model import training_file

STEPS = 30
TRAIN = {"steps": STEPS, "checkpoint_every": 2, "evaluate_every": 10}
STUDY = """
title = "A small study"
about = "For the tests."

[[parts]]
name = "hops"
config = "small.toml"
prepare = ["hops"]
arms = ["no_loop", "mixer_loop(2)", "full_loop(2)"]
seeds = [1]
measure = ["nll", "hops", "transport"]

[parts.transport]
windows = 4
positions = 4

[prefill]
sizes = ["nano"]
batches = [1]
length = 32
repeats = 2
"""
ALONE = ("--jobs", "1")  # in this process, cell by cell
STUDY_COMMAND = (*COMMAND, "study", "study.toml", *ALONE)
PHASES = ("data", "training", "nll", "hops", "transport", "prefill")
PATIENCE = 60
CELL = "hops/mixer_loop(2)-seed1"
NUMBERS = ("nll.json", "hops.json", "transport.json")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("study")
    (place / "small.toml").write_text(training_file(train=TRAIN))
    (place / "study.toml").write_text(STUDY)
    return place


@pytest.fixture(scope="module")
def done(place):
    """The study, finished, and what it printed."""
    return mixerloop("study", "study.toml", *ALONE, "--out", "whole", cwd=place).stdout


def numbers(study: Path) -> dict:
    """Every number a study found, without where and when."""
    found = {}
    for run in sorted((study / "hops").iterdir()):
        if not run.is_dir():
            continue
        assert not run.name.startswith("."), "a leftover"
        found[run.name, "metrics"] = (run / "metrics.jsonl").read_text()
        for name in NUMBERS:
            result = as_printed(run / "results" / name)
            del result["provenance"], result["checkpoint"]
            found[run.name, name] = result
    comparison = json.loads((study / "hops" / "comparison.json").read_text())
    found["pairs"] = comparison["pairs"]
    return found


def test_from_a_file_to_a_report(place, done):
    lines = done.strip().splitlines()
    assert lines[0] == "A small study"
    assert lines[-1] == "report: whole/report.html"
    for measure in ("held-out NLL", "right answers"):
        assert any(line.startswith(f"hops, {measure}, best first: ") for line in lines)
    study = place / "whole"
    for name in ("report.html", "report.md", "prefill.json", "plan.json"):
        assert (study / name).stat().st_size > 0
    names = {path.stem for path in (study / "figures").glob("*.svg")}
    assert names >= {"hops-curves", "hops-cost", "hops-accuracy", "prefill", "hops-schedules"}
    assert {path.stem for path in (study / "figures").glob("*.csv")} == names - {"hops-schedules"}
    status = json.loads(mixerloop("study", "status", "whole", "--json", cwd=place).stdout)
    assert [cell["state"] for cell in status[0]["cells"]] == ["done"] * 3


@pytest.mark.slow
def test_the_same_seeds_give_the_same_numbers_side_by_side(place, done):
    mixerloop("study", "study.toml", "--out", "again", cwd=place)
    assert numbers(place / "again") == numbers(place / "whole")


def test_what_is_done_is_not_done_again(place, done):
    def stamps():
        results = [place / "whole" / "prefill.json", *(place / "whole").rglob("results/*.json")]
        return {path: path.stat().st_mtime_ns for path in results}

    before = stamps()
    shown = mixerloop("study", "study.toml", *ALONE, "--out", "whole", cwd=place)
    assert stamps() == before
    assert "training" not in shown.stderr


def killed_in(phase: str, place: Path, out: str) -> None:
    """Start the study and kill it in the midst of a phase."""
    process = subprocess.Popen(
        [*STUDY_COMMAND, "--out", out],
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(place),
    )
    assert process.stderr is not None
    if phase == "data":
        wait_for(place / out / "cells" / "hops" / "data")
    else:
        words = "prefill: timing" if phase == "prefill" else f"{CELL}: {phase}"
        seen = ""
        for line in process.stderr:
            seen += line
            if words in line:
                break
        else:
            pytest.fail(f"it never came to {phase}: {seen}")
    if phase == "training":
        wait_for(place / out / CELL / "checkpoints" / "step-2")
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_interrupted_it_says_how_to_go_on(place):
    process = subprocess.Popen(
        [*STUDY_COMMAND, "--out", "interrupted"],
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(place),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    wait_for(place / "interrupted" / CELL / "checkpoints" / "step-2")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "stopped; the same command goes on from here" in said


def study_refused(*arguments, cwd) -> str:
    """The one line a study is refused with, before its plan is shown or after."""
    ended = mixerloop("study", *arguments, cwd=cwd, code=2)
    (line,) = ended.stderr.splitlines()
    assert line.startswith("mixerloop: ")
    return line


def wait_for(path: Path) -> None:
    began = time.monotonic()
    while not path.exists():
        assert time.monotonic() - began < PATIENCE, f"{path} never came"
        time.sleep(0.005)


@pytest.mark.slow
def test_killed_in_every_phase_it_ends_in_the_same_numbers(place, done):
    for phase in PHASES:
        killed_in(phase, place, "killed")
        assert not (place / "killed" / "report.html").exists()
        if phase == "training":
            assert not (place / "killed" / CELL / "checkpoints" / f"step-{STEPS}").exists()
    finished = mixerloop("study", "study.toml", *ALONE, "--out", "killed", cwd=place)
    assert "hops/no_loop-seed1" not in finished.stderr
    assert numbers(place / "killed") == numbers(place / "whole")


def test_a_cell_that_fails_is_named_and_the_rest_go_on(place, done):
    study = place / "broken"
    shutil.copytree(place / "whole", study)
    for name in ("mixer_loop(2)-seed1", "full_loop(2)-seed1"):
        (study / "hops" / name / "results" / "nll.json").unlink()
    checkpoint = max((study / "hops" / "mixer_loop(2)-seed1" / "checkpoints").iterdir())
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    ended = mixerloop("study", "study.toml", *ALONE, "--out", "broken", cwd=place, code=1)
    assert "failed: hops/mixer_loop(2)-seed1; start again" in ended.stdout
    assert (study / "hops" / "full_loop(2)-seed1" / "results" / "nll.json").exists()
    status = json.loads(mixerloop("study", "status", "broken", "--json", cwd=place).stdout)
    states = {cell["name"]: cell for cell in status[0]["cells"]}
    assert states["hops/mixer_loop(2)-seed1"]["state"] == "failed"
    assert "model.safetensors" in states["hops/mixer_loop(2)-seed1"]["error"]


def test_the_plan_comes_first_and_a_dry_run_writes_nothing(place):
    shown = mixerloop("study", "study.toml", "--out", "dry", "--dry-run", cwd=place).stdout
    assert "3 cells, kept in dry" in shown
    assert "expected: " in shown
    assert not (place / "dry").exists()


@pytest.mark.slow
def test_cells_can_be_picked_and_are_run_by_one_process_only(place):
    mixerloop("study", "study.toml", "--out", "picked", "--cells", "3,1", cwd=place)
    status = json.loads(mixerloop("study", "status", "picked", "--json", cwd=place).stdout)
    assert [cell["state"] for cell in status[0]["cells"]] == ["done", "waiting", "done"]
    assert not (place / "picked" / "report.html").exists()
    both = [
        subprocess.Popen(
            [*STUDY_COMMAND, "--out", "picked", "--cells", "2"],
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
    assert sum(f"{CELL}: training" in one for one in said) == 1


def test_a_report_of_runs_needs_no_study(place, done):
    names = [f"whole/hops/{name}-seed1" for name in ("no_loop", "mixer_loop(2)")]
    shown = mixerloop("report", *names, "--out", "both/two.html", cwd=place).stdout
    assert shown.strip().splitlines()[-1] == "report: both/two.html"
    assert "nothing says that they are matched" in (place / "both/two.md").read_text()


@pytest.fixture(scope="module")
def seeds(place):
    """A study of two seeds, with a deeper model of equal compute."""
    deeper = '{ name = "deeper", schedule = "no_loop", layers_for_flops_of = "mixer_loop(4)" }'
    text = STUDY.partition("[parts.transport]")[0].replace("seeds = [1]", "seeds = [1, 2]")
    text = text.replace('"mixer_loop(2)", "full_loop(2)"', f'"mixer_loop(4)", {deeper}')
    (place / "seeds.toml").write_text(
        text.replace(', "transport"', "") + "[parts.train]\nsteps = 4\n"
    )
    mixerloop("study", "seeds.toml", *ALONE, "--out", "seeds", cwd=place)
    return place / "seeds"


def test_over_several_seeds_an_interval_is_students(seeds):
    page = (seeds / "report.md").read_text()
    found = [
        json.loads((seeds / "hops" / f"no_loop-seed{seed}/results/nll.json").read_text())
        for seed in (1, 2)
    ]
    first, second = (one["nll"]["value"] for one in found)
    mean, half = (first + second) / 2, 12.706 * abs(first - second) / 2
    assert f"| {mean:.4f} [{mean - half:.4f}, {mean + half:.4f}] |" in page
    assert "Intervals are of 95 %, over seeds (Student's t)." in page
    assert "2 and 2 seeds: the interval is over seeds and examples" in page
    assert "corrected by Holm's method for all differences on this page" in page
    assert page.count("| two seeds: no verdict |") == 3 * 2


def test_the_deeper_control_is_told_apart(seeds):
    page = (seeds / "report.md").read_text()
    assert (
        "2 models of 2 layers, width 16, on hops; seeds 1, 2. Each has 5,672 parameters. " in page
    )
    assert "Models of one seed see the same tokens in the same order, at different costs." in page
    assert "Besides, deeper has " in page
    plan = json.loads((seeds / "plan.json").read_text())
    (deeper,) = (arm for arm in plan["parts"][0]["arms"] if arm["name"] == "deeper")
    (looped,) = (arm for arm in plan["parts"][0]["arms"] if arm["name"] == "mixer_loop(4)")
    assert deeper["flops_per_token"] == pytest.approx(looped["flops_per_token"], rel=0.05)
    assert deeper["parameters"] > looped["parameters"]


def test_runs_that_differ_in_the_seed_only_are_one_model(place, seeds):
    names = [f"seeds/hops/{arm}-seed{seed}" for arm in ("no_loop", "deeper") for seed in (1, 2)]
    mixerloop("report", *names, "--out", "apart/four.html", cwd=place)
    table, _, births = (place / "apart/four.md").read_text().partition("## Where every number")
    assert "| no_loop-seed1 | 2 |" in table
    assert "| no_loop-seed2 |" not in table
    assert "no_loop-seed2" in births
    assert (place / "apart/four-figures").is_dir()


def test_two_studies_make_one_report(place, done, seeds):
    mixerloop("report", "whole", "seeds", "--out", "all/both.html", cwd=place)
    page = (place / "all/both.md").read_text()
    for heading in ("## whole-hops: results", "## seeds-hops: results", "## Whole, prefill"):
        assert heading in page
    assert "whole-hops, held-out NLL, best first: " in page


def test_a_cell_that_was_not_measured_is_named_and_left_out(place, seeds):
    study = place / "partly"
    shutil.copytree(seeds, study)
    (study / "hops" / "deeper-seed2" / "results" / "hops.json").unlink()
    mixerloop("report", "partly", cwd=place)
    page = (study / "report.md").read_text()
    assert "Not finished, and so not in here: hops/deeper-seed2." in page
    assert "| deeper | 1 |" in page


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["study"], "name a study, such as quick"),
        (["study", "nowhere.toml"], "nowhere.toml: cannot read this study"),
        (["study", "study.toml", "--cells", "4"], "cells are numbers from 1 to 3"),
        (["study", "status", "nowhere"], "nowhere: not the folder of a study"),
        (["report"], "name a study's folder, or runs"),
        (["report", "nowhere", "--out", "x.html"], "nowhere: neither a study's folder nor a run"),
        (["report", "nowhere", "--out", "x.pdf"], "x.pdf: a page ends in .html"),
    ],
)
def test_what_cannot_be_done_is_refused(place, arguments, named):
    assert named in refused(*arguments, cwd=place)


def test_missing_data_is_refused_before_anything_is_trained(place):
    yours = STUDY.replace('prepare = ["hops"]', 'prepare = ["text", "{corpus}"]')
    yours = yours.replace('["nll", "hops", "transport"]', '["nll", "transport"]')
    (place / "yours.toml").write_text(yours)
    named = study_refused("yours.toml", "--out", "yours", cwd=place)
    assert "yours.toml, line 8: this data needs files of yours: --corpus FILE" in named
    named = study_refused("yours.toml", "--out", "yours", "--corpus", "no.txt", cwd=place)
    assert "no.txt" in named
    assert not (place / "yours" / "hops").exists()


def test_a_study_that_changed_does_not_mix_with_what_was_trained(place, done):
    for old, new, named in (
        ("[prefill]", "[parts.train]\nsteps = 9\n[prefill]", "was trained with train.steps 30"),
        ("windows = 4", "windows = 5", "was made with transport"),
        ("repeats = 2", "repeats = 3", "prefill.json: was measured with"),
        ('prepare = ["hops"]', 'prepare = ["hops", "--seed", "5"]', "was made with data hops"),
    ):
        assert STUDY.count(old) == 1
        (place / "changed.toml").write_text(STUDY.replace(old, new))
        assert named in study_refused("changed.toml", "--out", "whole", cwd=place)


def test_other_files_than_the_data_was_made_of_are_refused(place):
    for name in ("one", "two"):
        lines = [json.dumps({"text": f"{name} tale of {n} words. " * 20}) for n in range(40)]
        (place / f"{name}.jsonl").write_text("\n".join(lines))
    text = 'prepare = ["text", "{corpus}", "--vocab-size", "300", "--held-out-share", "0.2"]'
    text += "\nmodel = { vocab_size = 300 }"
    text = STUDY.replace('prepare = ["hops"]', text).partition("[prefill]")[0]
    text = text.replace('["nll", "hops", "transport"]', '["nll"]')
    text = text.replace(
        "[parts.transport]\nwindows = 4\npositions = 4\n", "[parts.data]\ncontext = 16\n"
    )
    (place / "text.toml").write_text(text)
    first = ("text.toml", "--out", "text", "--cells", "1")
    mixerloop("study", *first, "--corpus", "one.jsonl", cwd=place)
    named = study_refused(*first, "--corpus", "two.jsonl", cwd=place)
    assert "was made of other files (" in named
    mixerloop("study", *first, cwd=place)


def test_a_plan_of_another_kind_is_named(place):
    (place / "foreign").mkdir()
    for text in ("[]", "{}", '{"parts": 3}', '{"title": ""'):
        (place / "foreign" / "plan.json").write_text(text)
        for verb in (["study", "status"], ["report"], ["study", "study.toml", "--out"]):
            assert "foreign/plan.json: " in refused(*verb, "foreign", cwd=place)


def test_without_prefill_there_is_a_report_all_the_same(place, done, monkeypatch):
    study = place / "unmeasured"
    shutil.copytree(place / "whole", study)
    for name in ("prefill.json", "report.html"):
        (study / name).unlink()

    def fails(*_, **__):
        raise RuntimeError("no memory for so long a prompt")

    monkeypatch.setattr("mixerloop.studies.cells.bench_prefill", fails)
    ended = mixerloop("study", "study.toml", *ALONE, "--out", "unmeasured", cwd=place, code=1)
    assert "prefill: failed: " in ended.stderr
    assert "failed: prefill; start again" in ended.stdout
    assert (study / "report.html").is_file()
