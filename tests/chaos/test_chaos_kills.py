"""SIGKILLs at random moments lose nothing that was complete; `python -m chaos.kills` has more."""

import sys

import pytest

import needs
from chaos.kills import VERBS, storm
from chaos.signals import Arena
from chaos.signals_server import Server
from chaos.signals_verbs import BY_NAME

SEED = 1
KILLS = 5

pytestmark = [pytest.mark.slow, needs.PROC.mark]


@pytest.fixture(scope="module")
def arena(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kills")
    with Server(folder) as server:
        yield Arena(folder, server)


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_that_is_killed_again_and_again_loses_nothing(arena, capfd, name):
    done = storm(arena, BY_NAME[name], kills=KILLS, seed=SEED)
    with capfd.disabled():
        print(f"\n{done}", file=sys.stderr)
    assert not done.broken
