"""From a line of a task to scored tokens and a decision, by hand."""

import random
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixerloop.evaluation.core.answers import answer
from mixerloop.evaluation.core.prompts import prompts, shots_of, shuffled
from mixerloop.evaluation.core.questions import question
from mixerloop.evaluation.core.tasks import (
    LanguageModeling,
    MultipleChoice,
    Schema,
    read_examples,
    read_tasks,
)
from mixerloop.evaluation.scorer import TokenScores

START = 0


def encode(text):
    """One token per character, the start token in front."""
    return [START, *map(ord, text)]


def ask(kind, example, shots=(), delimiter=" ", context=1000):
    texts = prompts(example, shots=shots, delimiter=delimiter)
    return question(kind, [encode(text) for text in texts], context=context)


def scored(asked):
    """The text that is scored in each sequence."""
    return ["".join(map(chr, one.tokens[one.start :])) for one in asked.candidates]


def scores(losses, most_likely=None):
    losses = np.array(losses, dtype=float)
    return TokenScores(losses, np.array(most_likely if most_likely is not None else losses * 0))


# --- multiple choice -----------------------------------------------------------------------------

CAPITAL = MultipleChoice(query="Capital?", choices=("Bonn", "Bern"), gold=1)
RIVER = MultipleChoice(query="River? ", choices=("Rhine\n", " Alps"), gold=0)


def test_multiple_choice_is_query_delimiter_choice_after_answered_shots():
    assert prompts(CAPITAL, shots=[RIVER], delimiter="\nAnswer: ") == (
        "River? \nAnswer: Rhine\n\n\nCapital?\nAnswer: Bonn",
        "River? \nAnswer: Rhine\n\n\nCapital?\nAnswer: Bern",
    )


def test_white_space_of_queries_and_choices_is_data():
    assert prompts(RIVER, shots=[], delimiter=" ") == ("River?  Rhine\n", "River?   Alps")
    piqa = MultipleChoice(query="How?\n", choices=("so", "thus"), gold=0)
    assert prompts(piqa, shots=[], delimiter="\nAnswer: ")[0] == "How?\n\nAnswer: so"


def test_choices_are_scored_after_what_all_of_them_begin_with():
    asked = ask("multiple_choice", CAPITAL)
    assert scored(asked) == ["onn", "ern"]
    assert asked.candidates[0].start == len(encode("Capital? B"))
    assert not asked.cropped


def test_the_lowest_mean_loss_is_taken_whatever_the_lengths():
    example = MultipleChoice(query="q", choices=("abcd", "x"), gold=0)
    asked = ask("multiple_choice", example)
    found = answer(7, example, asked, [scores([1, 1, 1, 1]), scores([1.5])])
    assert (found.example, found.decision, found.right, found.losses) == (7, 0, True, (1.0, 1.5))


def test_a_choice_that_begins_the_other_has_an_empty_span_and_is_never_taken():
    example = MultipleChoice(query="q", choices=("cut", "cut it"), gold=0)
    asked = ask("multiple_choice", example)
    assert scored(asked) == ["", " it"]
    found = answer(0, example, asked, [scores([]), scores([9, 9, 9])])
    assert (found.decision, found.right, found.losses) == (1, False, (None, 9.0))


def test_of_equal_choices_the_first_is_taken():
    example = MultipleChoice(query="q", choices=("far", "same", "same"), gold=2)
    asked = ask("multiple_choice", example)
    same = scores([1.0] * 4)
    found = answer(0, example, asked, [scores([2.0] * 3), same, same])
    assert (found.decision, found.right) == (1, False)


# --- schema --------------------------------------------------------------------------------------

TROPHY = Schema(
    context_options=("It fails as the cup", "It fails as the box"),
    continuation="is big.",
    gold=1,
)


def test_a_schema_is_context_delimiter_continuation_after_answered_shots():
    assert prompts(TROPHY, shots=[TROPHY], delimiter=" ") == (
        "It fails as the box is big.\n\nIt fails as the cup is big.",
        "It fails as the box is big.\n\nIt fails as the box is big.",
    )


def test_a_schema_is_scored_on_what_all_sequences_end_with():
    asked = ask("schema", TROPHY)
    assert scored(asked) == [" is big.", " is big."]
    found = answer(0, TROPHY, asked, [scores([2.0] * 8), scores([1.0] * 8)])
    assert (found.decision, found.right) == (1, True)


def test_a_schema_whose_contexts_end_alike_is_scored_from_there():
    one = Schema(context_options=("A cat", "The bat"), continuation="sat.", gold=0)
    assert scored(ask("schema", one)) == ["at sat.", "at sat."]


def test_the_first_token_is_never_scored():
    asked = question("schema", [[5, 5, 5], [5, 5, 5, 5]], context=100)
    assert [candidate.start for candidate in asked.candidates] == [1, 1]


# --- language modelling --------------------------------------------------------------------------

STONE = LanguageModeling(context="  I do not care about ", continuation="signs")
SEA = LanguageModeling(context="\nThe sea is", continuation="blue ")


def test_language_modelling_strips_contexts_and_the_end_of_the_prompt_only():
    assert prompts(STONE, shots=[SEA], delimiter=" ") == (
        "The sea is blue \n\nI do not care about",
        "The sea is blue \n\nI do not care about signs",
    )
    without, with_end = prompts(STONE, shots=[], delimiter="\nAnswer: ")
    assert without == "I do not care about\nAnswer:"
    assert with_end == "I do not care about\nAnswer: signs"


def test_a_continuation_that_ends_the_context_too_is_not_taken_off_twice():
    example = LanguageModeling(context="so so", continuation="so")
    assert prompts(example, shots=[], delimiter=" ") == ("so so", "so so so")


def test_the_end_is_scored_after_what_both_prompts_begin_with():
    assert scored(ask("language_modeling", STONE)) == [" signs"]
    merged = question("language_modeling", [[0, 1, 2], [0, 1, 9, 3]], context=100)
    assert [(one.start, one.tokens.tolist()) for one in merged.candidates] == [(2, [0, 1, 9, 3])]


@pytest.mark.parametrize(("last", "right"), [("s", True), ("z", False)])
def test_every_token_of_the_end_must_be_the_most_likely(last, right):
    asked = ask("language_modeling", STONE)
    said = list(map(ord, f" sign{last}"))
    found = answer(0, STONE, asked, [scores([1.0] * 6, said)])
    assert (found.decision, found.right) == (None, right)


def test_an_end_without_a_token_is_not_right():
    asked = question("language_modeling", [[0, 1, 2], [0, 1, 2]], context=100)
    assert not answer(0, STONE, asked, [scores([])]).right


# --- cropping ------------------------------------------------------------------------------------


def test_a_long_prompt_keeps_its_last_tokens_and_the_span_moves_along():
    whole, short = ask("multiple_choice", CAPITAL), ask("multiple_choice", CAPITAL, context=6)
    assert scored(short) == scored(whole)
    assert short.cropped
    assert [len(one.tokens) for one in short.candidates] == [6, 6]
    assert short.candidates[0].tokens.tolist() == encode("Capital? Bonn")[-6:]


def test_a_span_longer_than_the_context_starts_at_its_second_token():
    asked = ask("schema", TROPHY, context=4)
    assert [one.start for one in asked.candidates] == [1, 1]
    assert scored(asked) == ["ig.", "ig."]


def test_one_long_choice_crops_only_itself():
    example = MultipleChoice(query="q", choices=("a", "a long one"), gold=0)
    asked = ask("multiple_choice", example, context=8)
    assert asked.cropped
    assert [len(one.tokens) for one in asked.candidates] == [4, 8]


# --- order and shots -----------------------------------------------------------------------------


def test_examples_are_shuffled_once_with_the_protocols_seed():
    expected = list(range(10))
    random.Random(1337).shuffle(expected)
    assert shuffled(range(10)) == expected == [0, 3, 7, 2, 1, 6, 4, 5, 8, 9]


@given(st.integers(2, 200), st.data())
def test_shots_are_the_protocols_sample_of_all_others(num_examples, data):
    index = data.draw(st.integers(0, num_examples - 1))
    num_shots = data.draw(st.integers(0, min(10, num_examples - 1)))
    others = [other for other in range(num_examples) if other != index]
    expected = random.Random(1234 + index).sample(others, num_shots)
    assert shots_of(index, num_examples=num_examples, num_shots=num_shots) == expected


# --- files ---------------------------------------------------------------------------------------

TASKS = b"""
icl_tasks:
-
  label: one
  dataset_uri: some/one.jsonl
  num_fewshot: [10, 0]
  icl_task_type: multiple_choice
  continuation_delimiter: "\\nAnswer: "
-
  label: two
  dataset_uri: some/two.jsonl
  num_fewshot: [0]
  icl_task_type: schema
"""


def test_tasks_are_read_in_order_with_the_first_number_of_shots():
    one, two = read_tasks(TASKS, "core.yaml")
    assert (one.label, one.num_shots, one.delimiter) == ("one", 10, "\nAnswer: ")
    assert (two.kind, two.num_shots, two.delimiter) == ("schema", 0, " ")


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (b"schema", b"shema", "task 2: unknown icl_task_type 'shema'; did you mean schema"),
        (b"num_fewshot: [0]", b"num_shots: [0]", "task 2: unknown key num_shots"),
        (b"[10, 0]", b"[]", r"task 1: num_fewshot = \[\]"),
        (b"label: two", b"label: one", "one is there twice"),
        (b"label: two", b"label: ../two", "label '../two' is not a word"),
        (b"icl_tasks:", b"tasks:", "no list of tasks"),
        (b"icl_tasks:", b"icl_tasks: {", "not YAML"),
        (b"icl_tasks:", b"icl_tasks: " + b"[" * sys.getrecursionlimit(), "not YAML"),
        (b"icl_tasks:", b"a: &a [x]\nb: *a\nicl_tasks:", "has aliases"),
        (b"label: two", b"label: " + b"t" * 101, "is not a word"),
        (b"label: two", b"label: !!python/object/apply:os.getcwd []", "not YAML"),
    ],
)
def test_a_broken_list_of_tasks_is_named(old, new, named):
    with pytest.raises(ValueError, match=named):
        read_tasks(TASKS.replace(old, new), "core.yaml")


def test_a_line_ends_at_a_newline_and_at_nothing_else():
    line = '{"context": "a\u2028b", "continuation": "c"}\n'
    (example,) = read_examples(line.encode(), "language_modeling", "x.jsonl")
    assert example == LanguageModeling(context="a\u2028b", continuation="c")


@pytest.mark.parametrize(
    ("kind", "line", "named"),
    [
        ("language_modeling", '{"context": "a"', "line 2: not JSON"),
        ("language_modeling", "", "line 2: not JSON"),
        ("language_modeling", '{"context": "\\ud800", "continuation": "b"}', "not valid Unicode"),
        ("language_modeling", "[1]", "line 2: not an object"),
        ("language_modeling", '{"context": "a"}', "line 2: continuation is missing"),
        ("language_modeling", '{"context": " ", "continuation": "b"}', "line 2: context is empty"),
        ("language_modeling", '{"context": "a", "continuation": 3}', "line 2: continuation = 3"),
        ("language_modeling", '{"context": "a", "ending": "b"}', "line 2: unknown key ending"),
        ("multiple_choice", '{"query": "", "choices": ["a", "b"], "gold": 0}', "query is empty"),
        ("multiple_choice", '{"query": "q", "choices": ["a", "b"], "gold": 2}', "gold = 2"),
        ("multiple_choice", '{"query": "q", "choices": ["a", "b"], "gold": true}', "gold = True"),
        ("multiple_choice", '{"query": "q", "choices": ["a"], "gold": 0}', "two options"),
        ("multiple_choice", '{"query": "q", "choices": ["a", ""], "gold": 0}', "none of them"),
        ("schema", '{"context_options": ["a", ""], "continuation": "c", "gold": 0}', "two options"),
    ],
)
def test_a_malformed_line_is_named_with_its_number(kind, line, named):
    good = {
        "language_modeling": '{"context": "a", "continuation": "b", "category": "known"}',
        "multiple_choice": '{"query": "q", "choices": ["a", "b"], "gold": 0}',
        "schema": '{"context_options": ["a", "b"], "continuation": "c", "gold": 0}',
    }[kind]
    content = f"{good}\n{line}\n{good}\n".encode()
    with pytest.raises(ValueError, match=r"^x\.jsonl, line 2: ") as caught:
        read_examples(content, kind, "x.jsonl")
    assert named in str(caught.value)
