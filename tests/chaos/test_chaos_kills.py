"""SIGKILLs at random moments lose nothing that was complete; `python -m chaos.kills` has more."""

import pytest

import needs
from chaos.counts import COUNT
from chaos.kills import VERBS, storm
from chaos.signals import Arena
from chaos.signals_server import Server
from chaos.signals_verbs import BY_NAME
from chaos.suite import IS_WHOLE, SEED, some_for_each_commit

KILLS = 5 if IS_WHOLE else 2

pytestmark = needs.PROC.mark


@pytest.fixture(scope="module")
def arena(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kills")
    with Server(folder) as server:
        yield Arena(folder, server)


@pytest.mark.parametrize("name", some_for_each_commit(VERBS, 2))
def test_a_verb_that_is_killed_again_and_again_loses_nothing(arena, record_property, name):
    verb = BY_NAME[name]
    done = storm(arena, verb, kills=max(2, KILLS // verb.cost), seed=SEED)
    record_property(COUNT, f"kills, seed {SEED}: {done}")
    assert not done.broken
