import pytest
import torch

from mixerloop import machine
from mixerloop.ops.threads import MACS_PER_THREAD, worthwhile_threads
from mixerloop.training import core_share
from mixerloop.training.core_share import CoreShare, threads_beside


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("busy", "most", "cores", "threads"),
    [
        (0.0, 2, 2, 2),
        (0.3, 2, 2, 2),  # a core that is mostly free is used
        (0.7, 2, 2, 1),  # what one busy program gets beside two of our threads
        (1.0, 2, 2, 1),
        (2.0, 2, 2, 1),
        (1.0, 8, 8, 7),
        (1.0, 4, 8, 4),
    ],
)
def test_threads_are_the_cores_that_others_leave(busy, most, cores, threads):
    assert threads_beside(busy, most, cores) == threads


class Watched:
    """Neighbours that a test makes busy."""

    busy: float | None = 0.0

    def busy_cores(self):
        return Watched.busy


def test_a_run_follows_its_neighbours_and_gives_the_threads_back(monkeypatch, two_threads):
    clock = [0.0]
    monkeypatch.setattr(core_share.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(machine, "Neighbours", Watched)
    monkeypatch.setattr(machine, "num_cores", lambda: 2)
    with CoreShare(follows=True) as share:
        for at, busy, threads in ((1, 1.0, 1), (1.1, 0.0, 1), (2, 0.0, 2), (3, None, 2), (4, 2, 1)):
            clock[0], Watched.busy = at, busy
            share.follow()
            assert torch.get_num_threads() == threads, at
    assert torch.get_num_threads() == 2


def test_a_run_that_may_not_follow_keeps_its_threads(two_threads):
    with CoreShare(follows=False) as share:
        share.follow()
        assert torch.get_num_threads() == 2


def test_small_work_takes_one_thread_and_large_work_all(two_threads):
    with worthwhile_threads(MACS_PER_THREAD):
        assert torch.get_num_threads() == 1
    with worthwhile_threads(2 * MACS_PER_THREAD):
        assert torch.get_num_threads() == 2
    with pytest.raises(KeyError), worthwhile_threads(1):
        raise KeyError
    assert torch.get_num_threads() == 2
