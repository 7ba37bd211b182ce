"""A disk that fills up at generated writes: one line, nothing half-written, and it can be finished.

`python -m chaos.disk` in tests/ runs any number of cases.
"""

import sys

import pytest

import needs
from chaos.disk import WRITING, DiskArena, cases, small_disk, violations
from chaos.signals import Tally
from chaos.signals_server import Server
from chaos.signals_verbs import BY_NAME

SEED = 1
SAMPLE = ("init",)
SLOW_PER_VERB = 18

pytestmark = needs.TMPFS.mark


@pytest.fixture(scope="module")
def arena(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disk")
    with small_disk(folder / "small") as disk, Server(folder) as server:
        yield DiskArena(folder, disk, server)


@pytest.fixture
def tally(capfd, request):
    tally = Tally()
    yield tally
    with capfd.disabled():
        print(f"\n{request.node.name}: {tally}", file=sys.stderr)


def test_a_full_disk_ends_a_sample_of_verbs_in_one_line_and_nothing_half_written(arena, tally):
    verbs = [BY_NAME[name] for name in SAMPLE]
    tally.run(cases(arena, verbs, per_verb=6, seed=SEED), lambda case: violations(arena, case))
    assert not tally.broken


@pytest.mark.slow
@pytest.mark.parametrize("name", [verb.name for verb in WRITING])
def test_a_full_disk_ends_a_verb_in_one_line_and_nothing_half_written(arena, tally, name):
    generated = cases(arena, [BY_NAME[name]], per_verb=SLOW_PER_VERB, seed=SEED)
    tally.run(generated, lambda case: violations(arena, case))
    assert not tally.broken
