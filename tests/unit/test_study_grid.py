"""Parts of a study in several sizes and budgets, with tuned keys and keys of each arm."""

import json
from pathlib import Path

import numpy as np
import pytest

from command_line import mixerloop
from made_once import made_once
from mixerloop import config as configs
from mixerloop.data.corpora import prepare_hops
from mixerloop.data.prepared import open_prepared
from mixerloop.evaluation.comparison_result import Comparison
from mixerloop.reports.build import findings
from mixerloop.reports.study_results import read_study as read_results
from mixerloop.result_files import read_typed
from mixerloop.studies.plan import make_plan
from mixerloop.studies.study import read_study
from mixerloop.studies.variants import tokens_text
from small_model import training_file

STUDY = """title = "Grid"

[[parts]]
name = "hops"
config = "small.toml"
prepare = ["hops"]
seeds = [1, 2]
measure = ["nll", "task"]
tokens = [400, 1e3]
tune = { "train.peak_lr" = [1e-5, 1e-2] }
tune_tokens = 500
arms = [
    "no_loop",
    { name = "mixer", schedule = "mixer_loop(2)", sizes = ["small"], tune = OWN },
    { name = "wide", schedule = "no_loop", sizes = ["small"], model = WIDE, train = CLIP },
]
[[parts.sizes]]
name = "small"
[[parts.sizes]]
name = "large"
model = { d_model = 24 }
train = { weight_decay = 0.2 }
"""
STUDY = STUDY.replace("OWN", '{ "train.peak_lr" = [1e-2, 3e-2] }')
STUDY = STUDY.replace("CLIP", "{ clip_norm = 0.5 }").replace("WIDE", "{ d_ffn = 48 }")


@pytest.fixture
def place(tmp_path) -> Path:
    (tmp_path / "small.toml").write_text(training_file(train={"global_batch": 4}))
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path


def plan_of(place):
    return make_plan(read_study(place / "study.toml"), place / "out")


def trained(cell):
    return cell.with_config().for_training()[1]


def test_every_model_is_planned_in_its_sizes_with_every_budget_after_its_sweep(place):
    plan = plan_of(place)
    names = [cell.run for cell in plan.rows]
    assert names[:6] == [
        *("hops-small-tuning/no_loop@1e-05-seed0", "hops-small-tuning/no_loop@0.01-seed0"),
        *("hops-small-tuning/mixer@0.01-seed0", "hops-small-tuning/mixer@0.03-seed0"),
        *("hops-small-tuning/wide@1e-05-seed0", "hops-small-tuning/wide@0.01-seed0"),
    ]
    assert names[6:8] == [
        *("hops-large-tuning/no_loop@1e-05-seed0", "hops-large-tuning/no_loop@0.01-seed0"),
    ]
    assert [name for name in names[8:] if name.endswith("seed1")] == [
        *("hops-small-400/no_loop-seed1", "hops-small-400/mixer-seed1"),
        *("hops-small-400/wide-seed1", "hops-small-1k/no_loop-seed1"),
        *("hops-small-1k/mixer-seed1", "hops-small-1k/wide-seed1"),
        *("hops-large-400/no_loop-seed1", "hops-large-1k/no_loop-seed1"),
    ]
    cells = {cell.run: cell for cell in plan.rows}
    assert [cell.waits_for_tuning for cell in plan.rows] == [False] * 8 + [True] * 16
    large = cells["hops-large-1k/no_loop-seed2"]
    assert large.with_config().model.d_model == 24
    assert (trained(large).weight_decay, trained(large).tokens) == (0.2, 1000)
    wide = cells["hops-small-400/wide-seed1"]
    assert wide.with_config().model.table()["swiglu"]["d_ffn"] == 48
    assert (trained(wide).clip_norm, trained(wide).tokens) == (0.5, 400)
    tuning = cells["hops-small-tuning/mixer@0.03-seed0"]
    assert (trained(tuning).peak_lr, trained(tuning).tokens) == (0.03, 500)
    planned = {row.part: row for row in plan.rows}
    assert {part.family for part in planned.values()} == {"hops"}
    assert planned["hops-large-1k"].size == "large"
    assert planned["hops-large-1k"].tokens == 1000


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("[1e-5, 1e-2]", "[1e-2, 1e-5]", "in increasing order"),
        ("[1e-5, 1e-2]", "[1e-5]", "two values or more"),
        ('"train.peak_lr" = [1e-5, 1e-2] ', "", "an arm tunes the key that its part tunes"),
        ('tune = { "train.peak_lr" = [1e-5', 'tune = { "peak_lr" = [1e-5', "'peak_lr' is no key"),
        ("seeds = [1, 2]", "seeds = [0, 1]", "seed 0 is that of tuning"),
        ("[400, 1e3]", "[400, 400]", "a budget is named twice"),
        ("[400, 1e3]", "[400, 0.5]", "whole numbers of tokens"),
        ("[400, 1e3]", "[400, inf]", "whole numbers of tokens"),
        ('sizes = ["small"], tune', 'sizes = ["smal"], tune', "unknown size 'smal'"),
        ('name = "large"', 'name = "small"', "'small' cannot name a size of its own"),
        ("clip_norm = 0.5", "seed = 5", "train.seed is for the study to set"),
        ("clip_norm = 0.5", "steps = 5", "train.steps is for the study to set"),
        ("weight_decay = 0.2", "seed = 5", "train.seed is for the study to set"),
        ("weight_decay = 0.2", "tokens = 5", "train.tokens is for the study to set"),
        ("d_model = 24", 'schedule = "no_loop"', "model.schedule is for the study to set"),
        ("d_ffn = 48", "d_fn = 48", "d_fn"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_by_name(place, old, new, named):
    assert STUDY.count(old) == 1
    (place / "study.toml").write_text(STUDY.replace(old, new))
    with pytest.raises(ValueError, match=named):
        plan_of(place)


@pytest.mark.parametrize(
    ("tokens", "text"),
    [(999, "999"), (1000, "1k"), (1_500_000, "1.5M"), (52 * 10**9, "52B"), (1_234_567, "1234567")],
)
def test_budgets_have_short_names(tokens, text):
    assert tokens_text(tokens) == text


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The grid, run to its end with two jobs."""
    return made_once(tmp_path_factory, "grid", run_grid)


def run_grid(place: Path) -> None:
    (place / "small.toml").write_text(training_file(train={"global_batch": 4}))
    (place / "study.toml").write_text(STUDY)
    mixerloop("study", "study.toml", "--out", "out", cwd=str(place))


@pytest.mark.slow
def test_the_value_with_the_smallest_nll_trains_all_runs_of_a_model(done):
    plan = plan_of(done)
    nll = {
        cell.run: json.loads((plan.run(cell) / "results/nll.json").read_text())["nll"]["value"]
        for cell in plan.rows
    }
    assert not any(cell.waits_for_tuning for cell in plan.rows)
    for cell in plan.rows:
        if cell.is_tuning:
            continue
        values = {
            trained(other).peak_lr: nll[other.run]
            for other in plan.rows
            if other.is_tuning and other.size == cell.size and other.arm.startswith(f"{cell.arm}@")
        }
        best = min(values, key=values.__getitem__)
        assert configs.load(plan.run(cell) / "config.toml").for_training()[1].peak_lr == best
        assert trained(cell).peak_lr == best


@pytest.mark.slow
def test_no_document_both_chooses_and_is_reported(done):
    def documents(part):
        found = set()
        for path in (done / "out").glob(f"{part}/*/results/nll.jsonl"):
            lines = map(json.loads, path.read_text().splitlines())
            found |= {line["document"] for line in lines}
        return found

    chose, reported = documents("hops-*-tuning"), documents("hops-*-400") | documents("hops-*-1k")
    assert chose
    assert reported
    assert not chose & reported
    assert chose | reported == set(range(4096))


@pytest.mark.slow
def test_the_report_has_the_sweep_a_warning_at_its_edge_and_every_comparison(done):
    report = (done / "out/report.md").read_text()
    assert "hops: tuning" in report
    assert "at the edge of its sweep" in report
    assert "hops: by size and budget" in report
    assert "What each model gains or loses against no_loop, by budget" in report
    assert (done / "out/figures/hops-gaps.svg").exists()
    assert "**Accuracy by hops, as trained**\n\n| model | 1 | 2 | 3 | 4 |" in report
    assert (done / "out/figures/hops-small-1k-accuracy.svg").exists()
    for part in ("hops-small-400", "hops-small-1k"):
        comparison = read_typed(
            Comparison, done / f"out/{part}/comparison.json", again="compare again"
        )
        assert {arm.name for arm in comparison.arms} == {"no_loop", "mixer", "wide"}
        assert {v.verdict for p in comparison.pairs for v in p.measures.values()} == {
            "two seeds: no verdict"
        }
    said = findings(read_results(done / "out"))
    assert any(line.startswith("hops-small-1k, held-out NLL, best first: ") for line in said)
    again = mixerloop("study", "study.toml", "--out", "out", "--json", cwd=done)
    assert json.loads(again.stdout)["findings"]


def test_the_documents_for_tuning_and_the_others_are_all_documents(tmp_path):
    prepare_hops(tmp_path / "hops")
    held_out = open_prepared(tmp_path / "hops").held_out(None)
    tuning, test = held_out.only("tuning"), held_out.only("test")
    numbers = np.concatenate([tuning.document_numbers(), test.document_numbers()])
    assert sorted(numbers) == list(range(held_out.num_documents))
    assert tuning.num_tokens + test.num_tokens == held_out.num_tokens
    for part in (tuning, test):
        scored = np.zeros(part.num_documents, dtype=int)
        for rows in part.batches():
            for documents in rows.documents:
                np.add.at(scored, documents[documents >= 0], 1)
        np.testing.assert_array_equal(scored, part.tokens_of_documents())
    assert held_out.only("all") is held_out
