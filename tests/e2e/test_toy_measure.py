"""A new measure is one file and one registration: it is measured, compared and reported."""

import json

import pytest

from command_line import mixerloop, refused
from mixerloop.measures import MEASURES, register
from mixerloop.result_files import read_result
from quick_verbs import save_time
from small_model import training_file
from toy_measure import TOY, PositiveResult

STUDY = """
title = "A toy measure"

[[parts]]
name = "toy"
config = "small.toml"
prepare = ["hops"]
arms = ["no_loop", "mixer_loop(2)"]
seeds = [1]
measure = ["positive"]
"""
RUNS = ("study/toy/no_loop-seed1", "study/toy/mixer_loop(2)-seed1")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A finished study whose only measure is the toy."""
    place = tmp_path_factory.mktemp("toy")
    (place / "small.toml").write_text(training_file())
    (place / "study.toml").write_text(STUDY)
    register(TOY)
    with pytest.MonkeyPatch.context() as monkeypatch:
        save_time(monkeypatch)
        mixerloop("study", "study.toml", "--jobs", "1", "--out", "study", cwd=place)
    yield place
    del MEASURES[TOY.name]


def test_a_study_measures_it_and_keeps_a_typed_result(place):
    result = read_result(place / RUNS[0] / "results", TOY)
    assert isinstance(result, PositiveResult)
    assert result.positive.lower < result.positive.value < result.positive.upper
    operators = {"cross_entropy", "rms_norm", "row_product", "swiglu", "gated_delta_mixing"}
    assert operators <= result.provenance.forms.keys() <= {*operators, "gated_delta_rule"}


def test_it_is_compared_with_a_verdict_and_reported(place):
    comparison = json.loads((place / "study/toy/comparison.json").read_text())
    (pair,) = comparison["pairs"]
    assert pair["measures"].keys() == {"positive"}
    assert pair["measures"]["positive"]["verdict"] == "one seed: no verdict"
    assert pair["measures"]["positive"]["over"] == "examples"
    shown = mixerloop("evaluate", "compare", *RUNS, cwd=place).stdout
    assert shown.count("positive weights") == 2  # of the architectures, and of their difference
    report = (place / "study/report.md").read_text()
    assert "| no_loop minus mixer_loop(2) | positive weights |" in report
    assert "toy, positive weights, best first: " in report


def test_damaged_details_are_named_with_the_command_that_measures_again(place, tmp_path):
    folder = place / RUNS[1] / "results"
    details = folder / "positive.jsonl"
    whole = details.read_text()
    details.write_text(whole.partition("\n")[2])
    line = refused("evaluate", "compare", *RUNS, cwd=place)
    details.write_text(whole)
    assert "positive.jsonl: not as it was written (its sha256" in line
    assert line.endswith(f"; measure again: toy positive {RUNS[1]}")


def test_a_measure_is_registered_once(place):
    with pytest.raises(ValueError, match="'positive': the measure or one of its scores exists"):
        register(TOY)
