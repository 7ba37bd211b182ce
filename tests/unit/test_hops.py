import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixerloop.data.batches import Batches
from mixerloop.data.corpora import prepare_hops
from mixerloop.data.prepared import open_prepared
from mixerloop.data.shards import seal_manifest
from mixerloop.data.tasks.hops import Hops, HopsSettings
from mixerloop.data.windows import NOT_SCORED

settings = st.builds(
    HopsSettings,
    num_nodes=st.integers(7, 12),
    num_queries=st.integers(8, 10),
    max_hops=st.integers(1, 6),
    seed=st.integers(0, 1000),
)


@given(settings, st.integers(0, 2**40 - 4))
def test_every_answer_is_that_many_hops_away(settings, first):
    n = settings.num_nodes
    sequences, hops = Hops(settings, "train").sequences(np.arange(first, first + 4))
    for row, row_hops in zip(sequences.tolist(), hops.tolist(), strict=True):
        leads_to = dict(zip(row[0 : 2 * n : 2], row[1 : 2 * n : 2], strict=True))
        assert sorted(leads_to) == sorted(leads_to.values()) == list(range(n))
        queries = [row[i : i + 3] for i in range(2 * n, len(row), 3)]
        assert len(queries) == settings.num_queries
        for (token, node, answer), k in zip(queries, row_hops, strict=True):
            assert token == n + k - 1
            assert 1 <= k <= settings.max_hops
            for _ in range(k):
                node = leads_to[node]
            assert node == answer


@given(settings)
def test_only_answers_are_scored_and_they_stand_in_the_input(settings):
    hops = Hops(settings, "train")
    inputs, labels = hops.read(np.arange(3))
    sequences, _ = hops.sequences(np.arange(3))
    scored = labels != NOT_SCORED
    assert (scored.sum(axis=1) == settings.num_queries).all()
    assert np.array_equal(labels[scored], sequences[:, hops.answer_positions()].ravel())
    assert np.array_equal(inputs, sequences[:, :-1])
    assert inputs.shape == (3, hops.context)
    assert sequences.max() < hops.vocab_size


def test_sequences_depend_on_seed_split_and_number_only():
    hops = Hops(HopsSettings(), "train")
    together = hops.read(np.array([5, 6, 7]))[0]
    alone = hops.read(np.array([6]))[0]
    assert np.array_equal(together[1], alone[0])
    assert not np.array_equal(together[0], together[1])
    for other in (Hops(HopsSettings(), "held_out"), Hops(HopsSettings(seed=1), "train")):
        assert not np.array_equal(other.read(np.array([6]))[0], alone)


def test_hops_and_nodes_are_drawn_evenly():
    sequences, hops = Hops(HopsSettings(), "train").sequences(np.arange(2000))
    shares = np.bincount(hops.ravel(), minlength=5)[1:] / hops.size
    assert abs(shares - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / hops.size)
    firsts = np.bincount(sequences[:, 1], minlength=8)[:8] / 2000
    assert abs(firsts - 0.125).max() < 5 * np.sqrt(0.125 * 0.875 / 2000)


def test_a_folder_stands_for_the_task(tmp_path):
    prepare_hops(tmp_path / "hops", HopsSettings(num_nodes=7))
    windows = open_prepared(tmp_path / "hops").windows("train", context=None)
    assert windows.vocab_size == 11
    batch = Batches(windows=windows, seed=0, global_batch=4).read(0)
    assert batch.inputs.shape == (4, windows.context)
    with pytest.raises(ValueError, match="its sequences have 37 tokens, not 128"):
        open_prepared(tmp_path / "hops").windows("train", context=128)
    (tmp_path / "hops" / "manifest.json").write_text(
        '{"format": "mixerloop-hops-1", "settings": {"num_nodes": 1}}'
    )
    seal_manifest(tmp_path / "hops")
    with pytest.raises(ValueError, match=r"hops\.num_nodes must be from 2"):
        open_prepared(tmp_path / "hops").windows("train", context=None)


def test_the_held_out_set_is_finite():
    assert Hops(HopsSettings(), "held_out").num_windows == 4096


def test_a_puzzle_that_repeats_itself_is_refused():
    with pytest.raises(ValueError, match="so small a puzzle repeats itself"):
        HopsSettings(num_nodes=3, num_queries=1)
    held_out = Hops(HopsSettings(), "held_out").sequences(np.arange(4096))[0]
    train = Hops(HopsSettings(), "train").sequences(np.arange(50_000))[0]
    assert not {row.tobytes() for row in held_out} & {row.tobytes() for row in train}
