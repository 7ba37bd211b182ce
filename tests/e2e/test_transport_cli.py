"""`mixerloop transport` as a user runs it."""

import csv
import json
import resource
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from command_line import COMMAND, environment, mixerloop, refused
from mixerloop.files import seal_folder
from mixerloop.reports import drawing
from saved_results import as_printed

KEYS = {
    *("pairs_total", "pairs_novel", "pairs_positive", "itr", "itr_by_depth", "marginal_itr"),
    *("hellinger_squared", "target_gain", "later_share", "noise_floor", "layers"),
    *("compute_dtype", "intact_max_abs_error"),
}


@pytest.fixture(scope="module")
def place(hops_run, tmp_path_factory):
    """A folder with a run, to which tests add results."""
    place = tmp_path_factory.mktemp("transport")
    shutil.copytree(hops_run, place / "run")
    return place


def test_a_run_is_measured_and_kept(place, quick):
    done = mixerloop("transport", "run", "--positions", 4, "--json", cwd=place)
    result = json.loads(done.stdout)
    assert result.keys() >= KEYS
    assert result["intact_max_abs_error"] == 0
    assert result["compute_dtype"] == "float32"
    assert result["pairs_total"] == 2
    assert len(result["layers"]) == 2
    assert result["marginal_itr"][0]["value"] == 1
    assert result["provenance"]["checkpoint_sha256"]
    assert as_printed(place / "run/results/transport.json") == result
    again = mixerloop("transport", "run", "--second-draw", "--positions", 4, "--json", cwd=place)
    assert json.loads(again.stdout)["target_gain"] != result["target_gain"]


def test_every_figure_is_a_table_and_two_pictures_beside_the_control(place):
    """The control is the run before training."""
    small = ("--windows", 4, "--positions", 4)
    shown = mixerloop("transport", "run", *small, "--control", "--out", "drawn", cwd=place).stdout
    assert shown.count("of 2 (layer, pass) pairs") == 2
    assert shown.strip().splitlines()[-1] == (
        "kept in drawn/transport.json, pictures in drawn/figures"
    )
    result = json.loads((place / "drawn/transport.json").read_text())
    first = mixerloop("transport", "run/checkpoints/step-0", *small, "--json", cwd=place)
    begun = json.loads(first.stdout)
    for name in ("itr", "marginal_itr", "target_gain", "layers", "noise_floor"):
        assert result["control"][name] == begun[name]
    figures = place / "drawn/figures"
    names = {path.stem for path in figures.glob("*.svg")}
    assert names == {
        *("transport-passes", "transport-novelty-trained", "transport-novelty-control"),
        *("transport-gain-trained", "transport-gain-control"),
    }
    for name in names:
        assert (figures / f"{name}.svg").read_text().startswith("<svg")
        assert (figures / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    with (figures / "transport-passes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    shown = [row for row in rows if row["model"] == "trained" and row["figure"] == "target_gain"]
    gains = result["target_gain"]
    assert [float(row["value"]) for row in shown] == [gain["value"] for gain in gains]
    ends = [(float(row["low"]), float(row["high"])) for row in shown]
    assert ends == [(gain["lower"], gain["upper"]) for gain in gains]
    with (figures / "transport-novelty-control.csv").open(newline="") as file:
        cells = {(row["layer"], row["pass"]): row["value"] for row in csv.DictReader(file)}
    assert float(cells["1", "2"]) == result["control"]["layers"][1]["marginal_itr"][1]["value"]


def test_fresh_weights_need_no_run_and_no_data(tmp_path):
    arguments = ("--random", "nano", "--schedule", "mixer_loop", "--init", "released")
    size = ("--windows", 4, "--positions", 4, "--context", 32, "--seed", 1, "--json")
    found = [
        json.loads(mixerloop("transport", *arguments, *size, *more, cwd=tmp_path).stdout)
        for more in ((), (), ("--compute-dtype", "bfloat16"))
    ]
    assert found[0]["itr"] == found[1]["itr"]
    new = [one["marginal_itr"][1]["value"] for one in found]
    assert new[0] < 0.05 < new[2]
    assert found[2]["noise_floor"]["wider_type"] == "float32"
    assert found[2]["noise_floor"]["marginal_itr"][1] > 0.05
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "name a run, or a preset with --random"),
        (["run", "--random", "nano"], "name a run, or a preset with --random"),
        (["--random", "nanno"], "unknown preset 'nanno'; did you mean nano?"),
        (["--random", "nano", "--windows", 1], "windows must be at least 2, got 1"),
        (["--random", "nano", "--context", 8], "has room for 3 positions, not 16"),
        (["run", "--windows", 9999], "there are 4096, and draw 0 of 9999 needs more"),
        (["run", "--data", "nowhere"], "nowhere: no manifest.json"),
        (["--random", "nano", "--control"], "--random is itself the control"),
        (["--random", "nano", "--data", "data"], "--data goes with a run, and not with --random"),
        (["--random", "nano", "--damping", "0.5"], "--damping goes with a run, and not with --ran"),
        (["run", "--init", "released"], "--init goes with --random; a run has its weights"),
    ],
)
def test_what_cannot_be_measured_is_refused(place, arguments, named):
    assert named in refused("transport", *arguments, cwd=place)


def with_weights(place, name, change):
    """A copy of the run whose tensors are changed, and whose checkpoints are sealed again."""
    shutil.copytree(place / "run", place / name)
    for folder in (place / name / "checkpoints").iterdir():
        path = folder / "model.safetensors"
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        weights = {name: change(tensor) for name, tensor in load_file(path).items()}
        save_file(weights, path, metadata=metadata)
        seal_folder(folder)
    shutil.rmtree(place / name / "results", ignore_errors=True)
    return place / name


def test_predictions_that_are_not_finite_are_refused(place):
    run = with_weights(place, "nans", lambda tensor: torch.full_like(tensor, float("nan")))
    ended = mixerloop("transport", run.name, "--positions", 4, "--json", cwd=place, code=1)
    assert ended.stdout == ""
    assert ended.stderr == "mixerloop: the logits are not finite; are the weights?\n"
    assert not (run / "results").exists()


@pytest.mark.parametrize("number", [0.0, 1e30])
def test_weights_that_move_no_prediction_have_no_effect(place, number, request):
    """A norm divides by the root of the mean square, which is infinite for weights of 1e30."""
    if number == 0.0:
        request.getfixturevalue("quick")  # the figures are the same
    run = with_weights(place, f"all {number}", lambda tensor: torch.full_like(tensor, number))
    options = ("--windows", 4, "--positions", 4, "--removal")
    ended = mixerloop("transport", run.name, *options, cwd=place)
    result = as_printed(run / "results/transport.json")
    assert result["itr"]["value"] is None
    assert {effect["value"] for effect in result["hellinger_squared"]} == {0.0}
    assert {gain["value"] for gain in result["target_gain"]} == {0.0}
    assert "not drawn" not in ended.stderr
    for name in ("transport-passes", "transport-novelty", "transport-gain"):
        assert (run / f"results/figures/{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_result_is_whole_if_its_figures_cannot_be_drawn(place, monkeypatch):
    small = ("--windows", 4, "--positions", 4)
    monkeypatch.setattr(drawing, "COMMAND", (sys.executable, "-S", "-m", "no_such_module"))
    mixerloop("transport", "run", *small, cwd=place)
    ended = mixerloop("transport", "run", *small, "--out", "undrawn", "--json", cwd=place)
    assert json.loads(ended.stdout) == as_printed(place / "undrawn/transport.json")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("not drawn: transport-passes, transport-novelty, transport-gain (")
    assert line.endswith("; the same command draws them, given more memory")
    assert sorted(path.suffix for path in (place / "undrawn/figures").iterdir()) == [
        *(".csv", ".csv", ".csv", ".json")
    ]
    ended = mixerloop("report", "run", "--out", "undrawn.html", cwd=place)
    assert ended.stdout == "nothing was compared\nreport: undrawn.html\n"
    assert ended.stderr.startswith("not drawn: runs-")
    assert ended.stderr.endswith("draw them again: mixerloop report run --out undrawn.html\n")
    assert "could not be drawn" in (place / "undrawn.html").read_text()
    assert "Not drawn." in (place / "undrawn.md").read_text()
    monkeypatch.undo()
    drawn = mixerloop("transport", "run", *small, "--out", "undrawn", "--json", cwd=place)
    assert drawn.stderr == ""
    assert (place / "undrawn/figures/transport-gain.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("gigabytes", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_a_result_survives_a_limit_of_memory(place, gigabytes):
    limit = gigabytes * 10**9
    out = f"limited-{gigabytes}"
    ended = subprocess.run(
        [*COMMAND, "transport", "run", "--windows", "4", "--out", out],
        cwd=place,
        capture_output=True,
        text=True,
        env=environment(place),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith(f"kept in {out}/transport.json, pictures in {out}/figures\n")
    assert "Traceback" not in ended.stderr
    assert as_printed(place / out / "transport.json")["windows"] == 4
    assert len(list((place / out / "figures").glob("*.csv"))) == 3
    assert not list(place.glob("core*"))
