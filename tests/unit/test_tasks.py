"""Facts about every registered task, and about those that can be longer than in training."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixerloop.data.sources import Split
from mixerloop.data.tasks.arithmetic import ArithmeticSettings, draw_expressions
from mixerloop.data.tasks.brackets import BracketsSettings
from mixerloop.data.tasks.edits import EditsSettings
from mixerloop.data.tasks.hops import HopsSettings
from mixerloop.data.tasks.permutations import PermutationsSettings, product_table
from mixerloop.data.tasks.recall import RecallSettings
from mixerloop.data.tasks.registry import TASKS
from mixerloop.data.windows import NOT_SCORED
from task_solvers import SOLVERS

NAMES = tuple(TASKS)
LONGER = tuple(name for name in NAMES if name != "hops")
PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"

SEEDS = st.integers(0, 1000)
SIZES = {
    "hops": st.builds(
        HopsSettings,
        num_nodes=st.integers(8, 12),
        num_queries=st.integers(8, 10),
        max_hops=st.integers(1, 6),
        seed=SEEDS,
    ),
    "permutations": st.builds(
        PermutationsSettings,
        num_elements=st.sampled_from((3, 5)),
        max_factors=st.integers(6, 12),
        seed=SEEDS,
    ),
    "recall": st.builds(
        lambda blocks, pairs, unused, **others: RecallSettings(
            num_blocks=blocks, num_pairs=pairs, num_keys=blocks * pairs + unused, **others
        ),
        blocks=st.integers(3, 5),
        pairs=st.integers(4, 6),
        unused=st.integers(0, 20),
        num_values=st.integers(4, 9),
        num_queries=st.integers(1, 4),
        seed=SEEDS,
    ),
    "brackets": st.builds(
        lambda depth, more, **others: BracketsSettings(
            max_depth=depth, num_brackets=2 * depth + 4 + 2 * more, num_questions=14, **others
        ),
        depth=st.integers(1, 8),
        more=st.integers(0, 3),
        num_kinds=st.integers(2, 4),
        seed=SEEDS,
    ),
    "arithmetic": st.builds(
        ArithmeticSettings,
        modulus=st.sampled_from((3, 5, 7, 11)),
        max_operations=st.integers(5, 9),
        seed=SEEDS,
    ),
    "edits": st.builds(
        lambda edits, more, unused, **others: EditsSettings(
            max_edits=edits, length=edits + more, num_symbols=2 * edits + more + unused, **others
        ),
        edits=st.integers(1, 8),
        more=st.integers(9, 12),
        unused=st.integers(20, 30),
        seed=SEEDS,
    ),
}
"""Valid settings of every task."""


def task_of(name, split: Split = "held_out", **changed):
    kind = TASKS[name]
    return kind(kind.settings_type(**changed), split)


def longer_of(task):
    longer = task.longer()
    assert longer is not None
    return longer


def stated_rates(name):
    """The shares of right guesses in the docstring of `guesses`: one, or one for each group."""
    return re.findall(r"\b[01]\.\d\d\b", TASKS[name].guesses.__doc__ or "")


def check_by_solver(task, indices):
    """Every answer and every group is that of the slow solver."""
    tokens, groups = task.sequences(indices)
    assert tokens.shape == (len(indices), task.context + 1)
    assert groups.shape == (len(indices), len(task.answer_positions()))
    for row, group in zip(tokens.tolist(), groups.tolist(), strict=True):
        solved = list(SOLVERS[task.name](task.settings, row))
        assert [question.position for question in solved] == task.answer_positions().tolist()
        assert [question.answer for question in solved] == [row[q.position] for q in solved]
        assert [question.difficulty for question in solved] == group


def check_bounds(task, indices):
    """Ids fit the vocabulary, answers and guesses fit the answers, groups fit the groups."""
    tokens, groups = task.sequences(indices)
    answers = tokens[:, task.answer_positions()]
    guesses = task.guesses(tokens)
    assert guesses.shape == answers.shape
    for ids, limit in ((tokens, task.vocab_size), (answers, task.num_answers)):
        assert 0 <= ids.min() <= ids.max() < limit
    assert 0 <= guesses.min() <= guesses.max() < task.num_answers <= task.vocab_size
    assert set(np.unique(groups)) <= set(task.groups)


@pytest.mark.parametrize("name", NAMES)
def test_a_slow_solver_finds_the_same_answers_and_difficulties(name):
    check_by_solver(task_of(name, "train"), np.arange(10**6, 10**6 + 300))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(data=st.data())
def test_the_solver_agrees_under_all_settings(name, data):
    task = TASKS[name](data.draw(SIZES[name]), "train")
    indices = np.arange(3) + data.draw(st.integers(0, 2**40 - 3))
    check_by_solver(task, indices)
    check_bounds(task, indices)
    longer = task.longer()
    if longer is not None:
        check_by_solver(longer, np.arange(2))
        check_bounds(longer, np.arange(2))


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_small_and_every_group_is_common(name):
    task = task_of(name)
    assert task.vocab_size <= 40
    assert 34 <= task.context <= 130
    check_bounds(task, np.arange(1000))
    groups = task.sequences(np.arange(50)).groups
    counts = [(groups == group).sum() for group in task.groups]
    assert sum(counts) == groups.size
    assert min(counts) >= 20


@pytest.mark.parametrize("name", NAMES)
def test_only_answers_are_labels(name):
    task = task_of(name, "train")
    inputs, labels = task.read(np.arange(5))
    tokens, _ = task.sequences(np.arange(5))
    assert np.array_equal(inputs, tokens[:, :-1])
    at = task.answer_positions()
    assert np.array_equal(labels[:, at - 1], tokens[:, at])
    assert (np.delete(labels, at - 1, axis=1) == NOT_SCORED).all()
    assert at[-1] == task.context


@pytest.mark.parametrize("name", NAMES)
def test_sequences_depend_on_settings_split_and_number_only(name):
    task = task_of(name, "train")
    numbers = np.array([7, 5, 2**39, 6, 0])
    together = task.sequences(numbers)
    for place, number in enumerate(numbers):
        alone = task.sequences(np.array([number]))
        assert np.array_equal(alone.tokens[0], together.tokens[place])
        assert np.array_equal(alone.groups[0], together.groups[place])
    assert len(np.unique(together.tokens, axis=0)) == len(numbers)
    for other in (task_of(name, "held_out"), task_of(name, "train", seed=1)):
        assert not (other.sequences(numbers).tokens == together.tokens).all(axis=1).any()


@pytest.mark.parametrize("name", NAMES)
def test_training_does_not_show_held_out_sequences(name):
    held_out = task_of(name).sequences(np.arange(4096)).tokens
    train = task_of(name, "train").sequences(np.arange(5_000)).tokens
    assert len({row.tobytes() for row in (*held_out, *train)}) == 4096 + 5_000


@pytest.mark.parametrize("name", NAMES)
def test_guesses_are_as_good_as_their_docstring_says(name):
    task = task_of(name)
    tokens, groups = task.sequences(np.arange(task.num_windows))
    right = task.guesses(tokens) == tokens[:, task.answer_positions()]
    stated = stated_rates(name)
    if len(stated) == 1:
        assert stated == [f"{right.mean():.2f}"]
    else:
        assert stated == [f"{right[groups == group].mean():.2f}" for group in task.groups]


@pytest.mark.parametrize("name", NAMES)
def test_a_guess_reads_nothing_but_the_tokens_before_its_answer(name):
    task = task_of(name)
    tokens, others = task.sequences(np.arange(200)).tokens, task.sequences(np.arange(200, 400))[0]
    guesses = task.guesses(tokens)
    for column, at in enumerate(task.answer_positions()):
        cut = np.concatenate([tokens[:, :at], others[:, at:]], axis=1)
        assert np.array_equal(task.guesses(cut)[:, column], guesses[:, column])


@pytest.mark.parametrize("name", LONGER)
def test_longer_sequences_are_harder_and_their_own(name):
    task = task_of(name)
    longer = longer_of(task)
    assert type(longer) is type(task)
    assert longer.vocab_size == task.vocab_size
    assert longer.num_answers == task.num_answers
    assert longer.num_windows == 4096
    assert longer.groups[: len(task.groups)] == task.groups
    assert longer.groups[-1] == 2 * task.groups[-1]
    assert 1.8 * task.context < longer.context < 4 * task.context
    check_by_solver(longer, np.arange(100))
    check_bounds(longer, np.arange(100))
    groups = longer.sequences(np.arange(50)).groups
    assert min((groups == group).sum() for group in longer.groups) >= 5

    keys = {int(task_of(name, split).key) for split in ("train", "held_out")}
    assert int(longer.key) not in keys
    beginnings = {row[:40].tobytes() for row in longer.sequences(np.arange(4096)).tokens}
    for split in ("train", "held_out"):
        known = task_of(name, split).sequences(np.arange(4096)).tokens
        assert not beginnings & {row[:40].tobytes() for row in known}
        again = longer_of(task_of(name, split))
        assert np.array_equal(again.sequences(np.arange(3))[0], longer.sequences(np.arange(3))[0])


def test_a_task_without_tokens_for_longer_sequences_has_none():
    assert task_of("hops").longer() is None
    assert task_of("recall", num_keys=31).longer() is None
    assert task_of("edits", length=10).longer() is None


@pytest.mark.parametrize(
    ("kind", "changed", "named"),
    [
        (HopsSettings, {"num_nodes": 1}, "hops.num_nodes must be from 2"),
        (PermutationsSettings, {"num_elements": 4}, "permutations.num_elements must be 3 or 5"),
        (PermutationsSettings, {"max_factors": 1}, "permutations.max_factors must be from 2"),
        (PermutationsSettings, {"seed": -1}, "permutations.seed must be from 0"),
        (RecallSettings, {"num_values": 1}, "recall.num_values must be from 2"),
        (RecallSettings, {"num_keys": 15}, "recall.num_keys must be at least"),
        (RecallSettings, {"num_queries": 3}, "recall.num_queries must be at most num_pairs = 2"),
        (RecallSettings, {"num_queries": 0}, "recall.num_queries must be from 1"),
        (RecallSettings, {"num_blocks": 0}, "recall.num_blocks must be from 1"),
        (BracketsSettings, {"num_kinds": 1}, "brackets.num_kinds must be from 2"),
        (BracketsSettings, {"num_kinds": 5}, "brackets.num_kinds must be from 2 to 4"),
        (BracketsSettings, {"max_depth": 0}, "brackets.max_depth must be from 1"),
        (BracketsSettings, {"num_brackets": 18}, "brackets.num_brackets must be from 20"),
        (BracketsSettings, {"num_brackets": 25}, "brackets.num_brackets must be even"),
        (BracketsSettings, {"num_questions": 0}, "brackets.num_questions must be from 1"),
        (ArithmeticSettings, {"modulus": 2}, "arithmetic.modulus must be from 3"),
        (ArithmeticSettings, {"modulus": 9}, "arithmetic.modulus must be a prime, got 9"),
        (ArithmeticSettings, {"max_operations": 0}, "arithmetic.max_operations must be from 1"),
        (EditsSettings, {"max_edits": 0}, "edits.max_edits must be from 1"),
        (EditsSettings, {"length": 4}, "edits.length must be more than max_edits = 4, got 4"),
        (EditsSettings, {"num_symbols": 12}, "edits.num_symbols must be at least"),
        (EditsSettings, {"seed": 2**20 + 1}, "edits.seed must be from 0 to 2^20"),
    ],
)
def test_invalid_settings_are_rejected_by_name(kind, changed, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        kind(**changed)


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        (HopsSettings, {"num_nodes": 3, "num_queries": 1}),
        (PermutationsSettings, {"max_factors": 5}),
        (RecallSettings, {"num_blocks": 1}),
        (BracketsSettings, {"num_kinds": 2, "num_questions": 3}),
        (ArithmeticSettings, {"max_operations": 3}),
        (EditsSettings, {"length": 8}),
    ],
)
def test_settings_with_too_few_sequences_are_rejected(kind, changed):
    with pytest.raises(ValueError, match="so small a puzzle repeats itself"):
        kind(**changed)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_about_tasks_has_an_example_settings_and_figures(name):
    task, page = task_of(name), PAGE.read_text(encoding="utf-8")
    written = task.written(task.sequences(np.arange(1)).tokens[0])
    assert written.isascii()
    assert "\n" not in written
    assert written in " ".join(page.split())
    assert all(f"`{field}`" in page for field in type(task.settings).__dataclass_fields__)
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
    *_, guess, vocabulary, context, _ = map(str.strip, row.split("|"))
    assert guess.split() == [rate.removeprefix("0") for rate in stated_rates(name)]
    assert (vocabulary, context) == (str(task.vocab_size), str(task.context))


def test_products_apply_the_first_permutation_first():
    table = product_table(3)  # 012 021 102 120 201 210
    assert table[2, 1] == 4  # 0 -> 1 -> 2, 1 -> 0 -> 0, 2 -> 2 -> 1
    assert table[1, 2] == 3
    assert np.array_equal(table[0], np.arange(6))
    assert np.array_equal(np.sort(product_table(5), axis=1), np.tile(np.arange(120), (120, 1)))


def test_all_shapes_of_expressions_are_equally_likely():
    numbers = np.random.default_rng(0).integers(2**63, size=(20_000, 14), dtype=np.uint64)
    shapes = draw_expressions(numbers, 7) >= 7
    _, counts = np.unique(shapes, axis=0, return_counts=True)
    assert len(counts) == 5  # the binary trees with three inner nodes
    assert abs(counts / 20_000 - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / 20_000)


def test_every_kind_of_edit_is_equally_likely():
    task = task_of("edits")
    tokens, groups = task.sequences(np.arange(4000))
    kinds = [(tokens == task.num_answers + number).sum() for number in (1, 2, 3)]
    total = groups[:, 0].sum()
    assert sum(kinds) == total
    assert abs(np.array(kinds) / total - 1 / 3).max() < 5 * np.sqrt(2 / 9 / total)


def test_hops_draws_a_permutation_of_nodes_and_hops_evenly():
    tokens, hops = task_of("hops", "train").sequences(np.arange(2000))
    assert (np.sort(tokens[:, 0:16:2]) == np.arange(8)).all()
    assert (np.sort(tokens[:, 1:16:2]) == np.arange(8)).all()
    shares = np.bincount(hops.ravel(), minlength=5)[1:] / hops.size
    assert abs(shares - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / hops.size)
    firsts = np.bincount(tokens[:, 1], minlength=8) / 2000
    assert abs(firsts - 0.125).max() < 5 * np.sqrt(0.125 * 0.875 / 2000)
