"""A disk that fills up at generated writes: one line, nothing half-written, and it can be finished.

`python -m chaos.disk` in tests/ runs any number of cases.
"""

import pytest

import needs
from chaos.counts import COUNT
from chaos.disk import WRITING, DiskArena, cases, small_disk, violations
from chaos.signals import Tally
from chaos.signals_server import Server
from chaos.signals_verbs import BY_NAME
from chaos.suite import IS_WHOLE, SEED, some_for_each_commit

SAMPLE = "init"

pytestmark = needs.TMPFS.mark


@pytest.fixture(scope="module")
def arena(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disk")
    with small_disk(folder / "small") as disk, Server(folder) as server:
        yield DiskArena(folder, disk, server)


@pytest.fixture
def check(arena, record_property):
    """Run cases of a verb, record how many there were, and fail if one broke a promise."""

    def check(name, per_verb):
        tally = Tally()
        generated = cases(arena, [BY_NAME[name]], per_verb=per_verb, seed=SEED)
        tally.run(generated, lambda case: violations(arena, case))
        record_property(COUNT, f"full disk, {name}, seed {SEED}: {tally}")
        assert not tally.broken

    return check


def test_a_disk_that_is_full_at_once_or_later_is_one_line_and_nothing_half_written(check):
    check(SAMPLE, per_verb=6)


@pytest.mark.parametrize("name", some_for_each_commit([verb.name for verb in WRITING], 3))
def test_a_full_disk_ends_a_verb_in_one_line_and_nothing_half_written(check, name):
    check(name, per_verb=12 if IS_WHOLE else 3)
