"""Signals at generated moments: the work is saved, the exit code is right, and it can be finished.

`python -m chaos.signals` in tests/ runs any number of cases.
"""

import pytest

import needs
from chaos.counts import COUNT
from chaos.signals import (
    IMPORTS,
    START_VERBS,
    Arena,
    Tally,
    cases,
    every_operation,
    start_cases,
    torchrun_cases,
    violations,
)
from chaos.signals_server import Server
from chaos.signals_verbs import BY_NAME
from chaos.suite import IS_WHOLE, SEED, some_for_each_commit

SAMPLE = "train"
PER_VERB = 12 if IS_WHOLE else 4
WHOLE = ("init", "import", "nll") if IS_WHOLE else ("init",)
"""Verbs that get a signal before and after each of their file operations."""

pytestmark = needs.PROC.mark


@pytest.fixture(scope="module")
def arena(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signals")
    with Server(folder) as server:
        yield Arena(folder, server)


@pytest.fixture
def check(arena, record_property):
    """Run cases, record how many there were, and fail if one broke a promise."""

    def check(what, generated):
        tally = Tally()
        tally.run(generated, lambda case: violations(arena, case))
        record_property(COUNT, f"signals, {what}, seed {SEED}: {tally}")
        assert not tally.broken

    return check


def test_a_signal_at_any_moment_of_training_saves_the_work(arena, check):
    check(SAMPLE, cases(arena, [BY_NAME[SAMPLE]], per_verb=4, seed=SEED))


@pytest.mark.parametrize("name", some_for_each_commit(BY_NAME, 3))
def test_a_signal_at_any_moment_of_a_verb_saves_the_work(arena, check, name):
    check(name, cases(arena, [BY_NAME[name]], per_verb=PER_VERB, seed=SEED))


@pytest.mark.nightly
@pytest.mark.parametrize("name", WHOLE)
def test_a_signal_before_and_after_every_file_operation_leaves_nothing_behind(arena, check, name):
    check(f"every operation of {name}", every_operation(arena, BY_NAME[name]))


@pytest.mark.slow
def test_a_signal_while_a_process_starts_ends_it_without_a_traceback(check):
    verbs = [BY_NAME[name] for name in START_VERBS]
    check("starts", start_cases(verbs, number=20 if IS_WHOLE else 6, imports=IMPORTS, seed=SEED))


@pytest.mark.nightly
def test_a_signal_to_torchrun_saves_the_work_of_its_ranks(check):
    check("torchrun", torchrun_cases(number=3 if IS_WHOLE else 1, seed=SEED))
