import json

import numpy as np
import pytest
import torch

from command_line import mixerloop, refused
from mixerloop.data.tasks.hops import Hops, HopsSettings
from mixerloop.evaluation.hops_result import HopsAccuracy, HopsResult
from mixerloop.evaluation.task_accuracy import task_accuracy
from mixerloop.evaluation.task_result import sequence_details
from mixerloop.evaluation.units import RatioUnits
from mixerloop.intervals import bootstrap_ratio
from mixerloop.result_files import write_result
from mixerloop.results import Estimate, result_provenance
from mixerloop.studies.reading import read_run
from small_model import model_file


@pytest.fixture
def hops():
    return Hops(HopsSettings(), "held_out")


class Oracle:
    """Follows the pairs, but never further than a number of hops."""

    def __init__(self, hops, reach):
        self.hops, self.reach = hops, reach

    def __call__(self, tokens, *, positions):
        n = self.hops.settings.num_nodes
        logits = torch.zeros(len(tokens), len(positions), self.hops.vocab_size)
        for row, sequence in enumerate(tokens.tolist()):
            leads_to = dict(zip(sequence[0 : 2 * n : 2], sequence[1 : 2 * n : 2], strict=True))
            for column, position in enumerate(positions.tolist()):
                node, number = sequence[position], sequence[position - 1] - n + 1
                for _ in range(min(number, self.reach)):
                    node = leads_to[node]
                logits[row, column, node] = 1
        return logits


def test_who_follows_two_pairs_is_right_for_two_hops(hops):
    for one in task_accuracy(Oracle(hops, reach=4), hops, num_sequences=100):
        assert one.accuracy == Estimate(value=1.0, lower=1.0, upper=1.0, over="sequences")
    found = task_accuracy(Oracle(hops, reach=2), hops, num_sequences=400)
    assert [one.accuracy.value == 1.0 for one in found] == [True, True, False, False]
    for one in found[2:]:
        assert one.accuracy.lower < one.accuracy.value < one.accuracy.upper < 0.6
    assert sum(one.questions for one in found) == 400 * 8


@pytest.mark.slow
def test_the_interval_of_a_ratio_covers_as_often_as_it_says():
    generator = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        units = generator.integers(1, 5, size=150)
        right = generator.binomial(units, 0.3)
        found = bootstrap_ratio(right, units, over="sequences", seed=trial)
        covered += found.lower <= 0.3 <= found.upper
    assert 0.90 <= covered / 200 <= 0.99


def test_an_interval_of_nothing_is_refused():
    with pytest.raises(ValueError, match="0 units have no interval"):
        bootstrap_ratio(np.zeros(0), np.zeros(0), over="sequences")


def test_the_command_prints_json_and_refuses_other_data(hops_data, tmp_path):
    run = tmp_path / "run"
    (tmp_path / "small.toml").write_text(model_file())
    mixerloop("init", tmp_path / "small.toml", "--out", run)
    evaluate = ("evaluate", "hops", run, "--sequences", 50)
    result = json.loads(mixerloop(*evaluate, "--data", hops_data, "--json").stdout)
    assert [one["hops"] for one in result["accuracy_by_hop"]] == [1, 2, 3, 4]
    assert all(one["accuracy"]["value"] < 0.5 for one in result["accuracy_by_hop"])
    assert result["schedule"] == "2x(A4 F)"
    assert "this run was not trained; name its data folder: data" in refused(*evaluate)


def test_counts_that_do_not_fit_the_figures_are_named(tmp_path):
    counts = np.array([[1, 2], [0, 1]]), np.array([[2, 2], [1, 3]])
    accuracy = Estimate(value=0.5, lower=0.4, upper=0.6, over="sequences")
    result = HopsResult(
        checkpoint="run",
        schedule="A F",
        trained_schedule="A F",
        accuracy_by_hop=tuple(
            HopsAccuracy(hops=hops, questions=questions, accuracy=accuracy, guess=0.1)
            for hops, questions in ((1, 3), (2, 5))
        ),
        provenance=result_provenance(
            checkpoint_sha256="x", seed=1, data="d", compute_dtype="float32"
        ),
    )
    write_result(tmp_path, result, details=sequence_details(*counts))
    units = read_run(tmp_path).units["hops"]
    assert isinstance(units, RatioUnits)
    assert (units.numerators.tolist(), units.denominators.tolist()) == ([3, 1], [4, 4])
    whole = (tmp_path / "hops.jsonl").read_text()
    for damaged, named in (
        (whole.splitlines()[0] + "\n", "its sequences are not those of the result"),
        (whole.replace("right", "left", 1), "line 1: 'right'"),
        (whole + "{", "line 3"),
    ):
        write_result(tmp_path, result, details=damaged)
        with pytest.raises(ValueError, match=named):
            read_run(tmp_path)
