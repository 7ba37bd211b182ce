"""Signals at generated moments: the work is saved, the exit code is right, and it can be finished.

`python -m chaos.signals` in tests/ runs any number of cases.
"""

import sys

import pytest

import needs
from chaos.signals import (
    IMPORTS,
    START_VERBS,
    Arena,
    Tally,
    cases,
    start_cases,
    torchrun_cases,
    violations,
)
from chaos.signals_server import Server
from chaos.signals_verbs import BY_NAME

SEED = 1
SAMPLE = ("train",)
SLOW_PER_VERB = 16
SLOW_STARTS = 30

pytestmark = needs.PROC.mark


@pytest.fixture(scope="module")
def arena(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signals")
    with Server(folder) as server:
        yield Arena(folder, server)


@pytest.fixture
def tally(capfd, request):
    tally = Tally()
    yield tally
    with capfd.disabled():
        print(f"\n{request.node.name}: {tally}", file=sys.stderr)


def test_a_signal_at_any_moment_saves_the_work_of_a_sample_of_verbs(arena, tally):
    verbs = [BY_NAME[name] for name in SAMPLE]
    tally.run(cases(arena, verbs, per_verb=4, seed=SEED), lambda case: violations(arena, case))
    assert not tally.broken


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_a_signal_at_any_moment_saves_the_work(arena, tally, name):
    generated = cases(arena, [BY_NAME[name]], per_verb=SLOW_PER_VERB, seed=SEED)
    tally.run(generated, lambda case: violations(arena, case))
    assert not tally.broken


@pytest.mark.slow
def test_a_signal_while_a_process_starts_ends_it_without_a_traceback(arena, tally):
    verbs = [BY_NAME[name] for name in START_VERBS]
    generated = start_cases(verbs, number=SLOW_STARTS, imports=IMPORTS, seed=SEED)
    tally.run(generated, lambda case: violations(arena, case))
    assert not tally.broken


@pytest.mark.slow
def test_a_signal_to_torchrun_saves_the_work_of_its_ranks(arena, tally):
    generated = torchrun_cases(number=4, seed=SEED)
    tally.run(generated, lambda case: violations(arena, case))
    assert not tally.broken
