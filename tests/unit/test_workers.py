"""Independent work on all cores: in order, promptly stopped, and the same bits on any number."""

import dataclasses
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from mixerloop.benchmarking.core_speed import tokenizer_of
from mixerloop.evaluation.core.asking import answers, asked
from mixerloop.evaluation.core.bundle import Bundle
from mixerloop.evaluation.looped_scorer import LoopedScorer
from mixerloop.evaluation.scorer import Candidate
from mixerloop.model.initialization import fresh_model
from mixerloop.ops import workers
from mixerloop.ops.workers import map_on_cores
from mixerloop.transport.removal import removal_costs
from mixerloop.transport.trajectories import measure
from mixerloop.transport.windows import uniform_windows

CPU = torch.device("cpu")
BUNDLE = Path(__file__).parents[1] / "data" / "core_bundle"


@pytest.fixture
def threads():
    """Sets torch's threads, and puts them back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("num", [1, 2, 5])
def test_results_come_in_the_order_of_the_items(threads, num):
    threads(num)

    def slow_at_first(item):
        time.sleep(0.02 / (1 + item))
        return item, torch.get_num_threads()

    assert list(map_on_cores(slow_at_first, range(9), device=CPU)) == [(n, 1) for n in range(9)]
    assert torch.get_num_threads() == num


def test_workers_run_at_once_and_no_more_items_wait_than_they_need(threads):
    threads(2)
    both = threading.Barrier(2)
    taken = []

    def items():
        for number in range(8):
            taken.append(number)
            yield number

    def meet(item):
        both.wait(timeout=30)
        return item

    results = map_on_cores(meet, items(), device=CPU)
    assert next(results) == 0
    assert len(taken) <= 2 * workers.ITEMS_PER_WORKER + 1
    assert list(results) == list(range(1, 8))


def test_threads_made_later_have_the_callers_number_of_torch_threads(threads):
    threads(3)
    list(map_on_cores(abs, range(3), device=CPU))
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert found == [3]


@pytest.mark.parametrize("num", [1, 2])
@pytest.mark.parametrize("error", [ValueError("no number"), KeyboardInterrupt()])
def test_an_exception_ends_it_before_the_other_items(threads, num, error):
    threads(num)
    begun = []

    def fail_at_once(item):
        begun.append(item)
        if item == 0:
            raise error
        time.sleep(0.05)

    with pytest.raises(type(error)):
        list(map_on_cores(fail_at_once, range(100), device=CPU))
    assert len(begun) <= 2 * workers.ITEMS_PER_WORKER
    assert torch.get_num_threads() == num


def test_other_devices_are_fed_by_the_caller(threads):
    threads(2)
    here = threading.current_thread()
    found = map_on_cores(
        lambda _: threading.current_thread() is here, range(3), device=torch.device("meta")
    )
    assert list(found) == [True] * 3


# --- the same bits on one thread and on two -------------------------------------------------------


def on_one_and_two(threads, function):
    found = []
    for num in (1, 2):
        threads(num)
        found.append(function())
    return found


def test_scores_do_not_depend_on_the_number_of_threads(tiny, threads, monkeypatch):
    monkeypatch.setattr("mixerloop.evaluation.looped_scorer.BATCH_TOKENS", 128)
    model = fresh_model(dataclasses.replace(tiny, schedule="mixer_loop(3)"), seed=0)
    generator = np.random.default_rng(0)
    rows = [generator.integers(50, size=size) for size in generator.integers(2, 90, size=40)]
    windows = [[Candidate(row, start=1)] for row in rows]  # as NLL asks

    def losses():
        return np.concatenate([one.losses for (one,) in LoopedScorer(model).score(windows)])

    np.testing.assert_array_equal(*on_one_and_two(threads, losses))


def test_answers_do_not_depend_on_the_number_of_threads(tiny, threads):
    bundle = Bundle(BUNDLE)
    asking = [asked(bundle, task, limit=None) for task in bundle.tasks]
    tokenizer = tokenizer_of(asking, vocab_size=400)
    config = dataclasses.replace(tiny, vocab_size=400, schedule="mixer_loop(2)")
    model = fresh_model(config, seed=0)

    def all_answers():
        scorer = LoopedScorer(model)
        found = [
            answers(
                one,
                range(len(one.examples)),
                scorer=scorer,
                encode=tokenizer.encode_all,
                context=1024,
            )
            for one in asking
        ]
        return found, scorer.tokens_processed

    first, second = on_one_and_two(threads, all_answers)
    assert first == second


def test_trajectories_do_not_depend_on_the_number_of_threads(tiny, threads):
    model = fresh_model(dataclasses.replace(tiny, schedule="full_loop(2)"), seed=0)
    windows = uniform_windows(tiny.vocab_size, num=20, context=40, num_positions=5, seed=0)
    first, second = on_one_and_two(threads, lambda: measure(model, windows, windows_at_once=3))
    for name in ("gram", "hellinger_squared", "target_gain", "top1_flips"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert first.intact_max_abs_error == second.intact_max_abs_error == 0.0
    one, other = on_one_and_two(threads, lambda: removal_costs(model, windows))
    for kind, costs in one.items():
        np.testing.assert_array_equal(costs.nll, other[kind].nll)
