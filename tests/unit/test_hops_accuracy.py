import json

import numpy as np
import pytest
import torch

from command_line import mixerloop, refused
from mixerloop.data.corpora import prepare_hops
from mixerloop.data.tasks.hops import Hops, HopsSettings
from mixerloop.evaluation.hops_result import HopsAccuracy, HopsResult
from mixerloop.evaluation.measured_run import read_measured_run
from mixerloop.evaluation.task_accuracy import task_accuracy
from mixerloop.evaluation.task_result import sequence_details
from mixerloop.evaluation.units import RatioUnits
from mixerloop.intervals import bootstrap_ratio
from mixerloop.model.initialization import fresh_model
from mixerloop.result_files import write_result
from mixerloop.results import Estimate, result_provenance
from small_model import small_config


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


def test_who_follows_every_pair_is_always_right(hops):
    for one in task_accuracy(Oracle(hops, reach=4), hops, num_sequences=100):
        assert one.accuracy == Estimate(value=1.0, lower=1.0, upper=1.0, over="sequences")


def test_who_follows_two_pairs_is_right_for_two_hops(hops):
    found = task_accuracy(Oracle(hops, reach=2), hops, num_sequences=400)
    assert [one.accuracy.value == 1.0 for one in found] == [True, True, False, False]
    for one in found[2:]:
        assert one.accuracy.lower < one.accuracy.value < one.accuracy.upper < 0.6
    assert sum(one.questions for one in found) == 400 * 8


def test_a_fresh_model_knows_nothing(hops):
    config = small_config(
        num_layers=1, d_model=16, num_heads=2, d_head=8, d_ffn=16, vocab_size=hops.vocab_size
    )
    for one in task_accuracy(fresh_model(config, seed=0), hops, num_sequences=500):
        assert one.accuracy.value < 0.5


def test_a_guess_is_the_node_itself_or_an_answer_seen_before(hops):
    n = hops.settings.num_nodes
    sequences, asked_hops = hops.sequences(np.arange(300))
    said = hops.guesses(sequences)
    seen_again = 0
    for row, sequence in enumerate(sequences.tolist()):
        answers = {}
        for column, at in enumerate(hops.answer_positions()):
            question = (sequence[at - 2], sequence[at - 1])
            seen_again += question in answers
            assert said[row, column] == answers.get(question, question[1])
            answers[question] = sequence[at]
            assert sequence[at - 2] == n + asked_hops[row, column] - 1
    assert seen_again > 100


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


def test_the_command_prints_json_and_refuses_other_data(tmp_path):
    run, data = tmp_path / "run", tmp_path / "data"
    (tmp_path / "c.toml").write_text(
        "[model]\nnum_layers = 1\nd_model = 16\nnum_heads = 2\nd_head = 8\nd_ffn = 16\n"
        "vocab_size = 12\n"
    )
    mixerloop("init", tmp_path / "c.toml", "--out", run)
    prepare_hops(data, HopsSettings())
    evaluate = ("evaluate", "hops", run, "--sequences", 50)
    result = json.loads(mixerloop(*evaluate, "--data", data, "--json").stdout)
    assert [one["hops"] for one in result["accuracy_by_hop"]] == [1, 2, 3, 4]
    assert result["schedule"] == "A4 F"
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
    units = read_measured_run(tmp_path).units["hops"]
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
            read_measured_run(tmp_path)
