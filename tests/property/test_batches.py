import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixerloop.data.batches import Batches
from mixerloop.data.order import Permutation

seeds = st.integers(0, 2**63 - 1)


class Numbered:
    """Windows that are their own numbers."""

    vocab_size = 10**9
    context = 1

    def __init__(self, num_windows: int) -> None:
        self.num_windows = num_windows

    def read(self, indices):
        return indices[:, None], indices[:, None] + 1


def batches(num_windows, seed, global_batch, **rank):
    return Batches(windows=Numbered(num_windows), seed=seed, global_batch=global_batch, **rank)


@given(st.integers(1, 10**10), seeds, st.data())
def test_a_permutation_of_any_size_stays_inside_and_is_one_to_one(size, seed, data):
    start = data.draw(st.integers(0, size - 1))
    indices = np.arange(start, min(start + 200, size))
    order = Permutation(size, seed=seed, epoch=0)(indices)
    assert ((order >= 0) & (order < size)).all()
    assert len(set(order.tolist())) == len(indices)


@settings(max_examples=30)
@given(
    num_windows=st.integers(1, 200),
    seed=seeds,
    per_rank=st.integers(1, 6),
    start=st.integers(0, 50),
)
def test_any_number_of_ranks_and_any_restart_give_the_same_batches(
    num_windows, seed, per_rank, start
):
    global_batch = 4 * per_rank
    alone = batches(num_windows, seed, global_batch)
    whole = [alone.read(step).inputs for step in range(start, start + 5)]
    for num_ranks in (2, 4):
        ranks = [
            batches(num_windows, seed, global_batch, rank=r, num_ranks=num_ranks)
            for r in range(num_ranks)
        ]
        for step in range(start, start + 5):
            parts = [rank.read(step).inputs for rank in ranks]
            assert np.array_equal(np.concatenate(parts), whole[step - start])
    restarted = [b.inputs for b in alone.prefetched(start=start, stop=start + 5)]
    assert all(np.array_equal(a, b) for a, b in zip(whole, restarted, strict=True))


@settings(max_examples=40)
@given(num_windows=st.integers(1, 300), seed=seeds, global_batch=st.integers(1, 40))
def test_each_epoch_visits_every_window_exactly_once(num_windows, seed, global_batch):
    source = batches(num_windows, seed, global_batch)
    steps = -(-2 * num_windows // global_batch)
    seen = np.concatenate([source.window_indices(step) for step in range(steps)])
    for epoch in (seen[:num_windows], seen[num_windows : 2 * num_windows]):
        assert np.array_equal(np.sort(epoch), np.arange(num_windows))


@settings(max_examples=20)
@given(seeds)
def test_two_epochs_and_two_seeds_differ_in_order(seed):
    size = 1000
    orders = [
        Permutation(size, seed=one, epoch=epoch)(np.arange(size))
        for one, epoch in ((seed, 0), (seed, 1), (seed ^ 1, 0))
    ]
    assert (orders[0] == orders[1]).mean() < 0.05
    assert (orders[0] == orders[2]).mean() < 0.05


def test_an_order_looks_random():
    size = 100_000
    order = Permutation(size, seed=0, epoch=0)(np.arange(size)).astype(float)
    bound = 5 / np.sqrt(size)
    assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < bound
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < bound
    counts, _ = np.histogram(order[:10_000], bins=100, range=(0, size))
    assert abs(counts - 100).max() < 60  # six standard deviations


def test_prefetching_can_be_stopped_and_passes_errors_on():
    source = batches(100, 0, 4)
    iterator = source.prefetched(start=0, stop=10**9)
    assert next(iterator).step == 0
    iterator.close()  # pyright: ignore[reportAttributeAccessIssue]

    class Broken(Numbered):
        def read(self, indices):
            raise ValueError("shard gone")

    broken = Batches(windows=Broken(10), seed=0, global_batch=2)
    with pytest.raises(ValueError, match="shard gone"):
        next(broken.prefetched(start=0, stop=3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch": 6, "num_ranks": 4}, "a batch of 6 does not divide among 4 ranks"),
        ({"global_batch": 0}, "a batch of 0 does not divide"),
        ({"global_batch": 4, "rank": 2, "num_ranks": 2}, "rank 2 of 2"),
    ],
)
def test_a_batch_that_does_not_divide_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Batches(windows=Numbered(10), seed=0, **options)


def test_no_windows_and_no_steps_before_the_first():
    with pytest.raises(ValueError, match="nothing to put in order"):
        Permutation(0, seed=0, epoch=0)
    with pytest.raises(ValueError, match="step must be 0 or more"):
        batches(10, 0, 1).read(-1)
