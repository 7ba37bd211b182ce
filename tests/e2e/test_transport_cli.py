"""`mixerloop transport` as a user runs it."""

import csv
import json

import pytest

from command_line import mixerloop, refused
from mixerloop.data.corpora import prepare_hops
from mixerloop.data.tasks.hops import HopsSettings
from saved_results import as_printed
from small_model import training_file

KEYS = {
    *("pairs_total", "pairs_novel", "pairs_positive", "itr", "itr_by_depth", "marginal_itr"),
    *("hellinger_squared", "target_gain", "later_share", "noise_floor", "layers"),
    *("compute_dtype", "intact_max_abs_error"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("transport")
    prepare_hops(place / "hops", HopsSettings())
    (place / "hops.toml").write_text(
        training_file("hops", train={"steps": 3}, schedule="mixer_loop(3)")
    )
    mixerloop("train", "hops.toml", "--out", "run", cwd=place)
    return place


def test_a_run_is_measured_and_kept(place):
    done = mixerloop("transport", "run", "--positions", 4, "--json", cwd=place)
    result = json.loads(done.stdout)
    assert result.keys() >= KEYS
    assert result["intact_max_abs_error"] == 0
    assert result["compute_dtype"] == "float32"
    assert result["pairs_total"] == 2 * 2
    assert len(result["layers"]) == 2
    assert result["marginal_itr"][0]["value"] == 1
    assert result["provenance"]["checkpoint_sha256"]
    assert as_printed(place / "run/results/transport.json") == result
    other = mixerloop("transport", "run", "--second-draw", "--json", cwd=place, code=0).stdout
    assert json.loads(other)["target_gain"] != result["target_gain"]
    shown = mixerloop("transport", "run", "--control", cwd=place).stdout
    assert shown.count("of 4 (layer, pass) pairs") == 2
    assert shown.strip().splitlines()[-1] == (
        "kept in run/results/transport.json, pictures in run/results/figures"
    )


def test_the_control_is_the_run_before_training(place):
    mixerloop("transport", "run", "--control", "--out", "both", cwd=place)
    mixerloop("train", "hops.toml", "--train.steps", 1, "--out", "begun", cwd=place)
    first = mixerloop("transport", "begun/checkpoints/step-0", "--json", cwd=place)
    control = json.loads((place / "both/transport.json").read_text())["control"]
    begun = json.loads(first.stdout)
    for name in ("itr", "marginal_itr", "target_gain", "layers", "noise_floor"):
        assert control[name] == begun[name]


def test_every_figure_is_a_table_and_two_pictures(place):
    mixerloop("transport", "run", "--control", "--out", "drawn", cwd=place)
    result = json.loads((place / "drawn/transport.json").read_text())
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
    assert float(cells["1", "3"]) == result["control"]["layers"][1]["marginal_itr"][2]["value"]


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
    ],
)
def test_what_cannot_be_measured_is_refused(place, arguments, named):
    assert named in refused("transport", *arguments, cwd=place)
