"""`mixerloop law` as a user runs it, on the folder of a study whose models follow a law."""

import json

import pytest

from command_line import mixerloop, refused
from law_study import BUDGETS, MEDIUM, SIZES, write_study
from mixerloop.files import read_sealed, write_sealed
from mixerloop.study_folder import PLAN

WORDS = ("loop", "passes", "phi", "published")


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr("mixerloop.laws.study_law.RESAMPLES", 4)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("law")
    write_study(place / "study", {**SIZES, **MEDIUM})
    write_study(place / "one-size", {"small": SIZES["small"]})
    write_study(place / "two-budgets", {**SIZES, **MEDIUM}, BUDGETS[:2])
    return place


def test_a_law_is_shown_with_phi_residuals_and_predictions(place):
    shown = mixerloop("law", "study", cwd=place).stdout
    lines = shown.splitlines()
    assert lines[0] == "Planted"
    assert all(word in lines[1] for word in WORDS)
    rows = {line.split()[0]: line.split() for line in lines[2:4]}
    assert float(rows["mixer_loop"][2]) == pytest.approx(0.3, abs=0.02)
    assert float(rows["full_loop"][2]) == pytest.approx(0.46, abs=0.02)
    assert rows["full_loop"][6] == "0.46"
    assert "full_loop, 18 cells: intervals are over cells" in shown
    assert "predicted without the size itself" in shown
    assert "remark: mixer_loop: fewer than three seeds in some cells" in shown


def test_a_file_of_the_user_is_not_replaced(place, quick):
    (place / "own").mkdir()
    (place / "own" / "law.json").write_text("mine")
    law = ("law", "two-budgets", "--floor", "1.8", "--out", "own")
    ended = mixerloop(*law, cwd=place, code=2)
    assert "law.json: not a file that mixerloop wrote" in ended.stderr
    assert (place / "own" / "law.json").read_text() == "mine"
    mixerloop(*law, "--overwrite", cwd=place)
    assert json.loads((place / "own" / "law.json").read_text())["loops"]


def test_two_budgets_are_enough_with_a_floor_and_each_loop_has_a_figure(place):
    assert "E, B and beta need three token budgets or more of one size" in refused(
        "law", "two-budgets", cwd=place
    )
    law = ("law", "two-budgets", "--floor", "1.8", "--json", "--out", "law")
    printed = json.loads(mixerloop(*law, cwd=place).stdout)
    assert [loop["loop"] for loop in printed["loops"]] == ["mixer_loop", "full_loop"]
    assert printed["loops"][0]["parameters"]["phi"]["value"] == pytest.approx(0.3, abs=0.02)
    assert printed["floor"] == printed["loops"][0]["parameters"]["E"]["value"] == 1.8
    assert json.loads((place / "law/law.json").read_text()) == printed
    figures = {f"law-{loop['loop']}.{end}" for loop in printed["loops"] for end in ("csv", "svg")}
    names = {path.name for path in (place / "law").iterdir() if path.suffix != ".png"}
    assert names == {"law.json", "written.json", *figures}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["one-size"], "one-size: mixer_loop: alpha needs two sizes or more of no_loop; the study"),
        (["nowhere"], "nowhere/plan.json: "),
        (["study", "--parts", "x"], "study: no part 'x'; the study has: text-small-3000000, "),
        (["study", "--floor", "9"], "study: floor must be from 0 to the smallest NLL"),
        (["study", "--floor", "nan"], "study: floor must be from 0 to the smallest NLL"),
        (["study", "--seed", "-1"], "study: seed must be from 0"),
        (["study", "--out", "study/plan.json"], "plan.json: is a file, and results go into"),
    ],
)
def test_an_error_is_one_line(place, arguments, said):
    assert said in refused("law", *arguments, cwd=place)


def test_a_plan_without_parameters_of_sublayers_is_rejected(place):
    path = place / "one-size" / PLAN
    plan = read_sealed(path)
    for row in plan["rows"]:
        row["layer_parameters"] = []  # older plans lack it
    write_sealed(path, plan)
    assert "write it again: mixerloop study" in refused("law", "one-size", cwd=place)
