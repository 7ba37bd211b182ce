import pytest

from mixerloop.notation import MAX_OCCURRENCES, notation, parse, resolve
from mixerloop.schedule import (
    block_loop,
    ffn_loop,
    full_loop,
    mixer_loop,
    no_loop,
    prelude_core_coda,
)

TEXTS = [
    ("6x(A F)", no_loop(6)),
    ("6x(A4 F)", mixer_loop(6, 4)),
    ("6x(A F4)", ffn_loop(6, 4)),
    ("6x((A F)4)", block_loop(6, 4)),
    ("4x(6x(A F))", full_loop(6, 4)),
    ("2x(A4 F) A2 F A F", mixer_loop(4, [4, 4, 2, 1])),
    (
        "2x(A F) 3x(4x(A F)) 2x(A F)",
        prelude_core_coda(num_prelude=2, num_core=4, num_coda=2, num_passes=3),
    ),
    ("2x(2x(A F))", full_loop(2, 2)),
    ("4x((A F)4)", block_loop(4, 4)),
    ("(A F)4", full_loop(1, 4)),
    ("1x(A2) A F", mixer_loop(2, [2, 1])[:2] + mixer_loop(2, [2, 1])[3:]),
    ("A@0.1 F@0.0", mixer_loop(1, 2)[1:]),
]


@pytest.mark.parametrize(("text", "schedule"), TEXTS)
def test_text_and_schedule_are_each_other(text, schedule):
    assert parse(text) == schedule
    assert notation(schedule) == text


@pytest.mark.parametrize(
    ("loose", "text"),
    [
        ("A4 F A4 F A2 F A F", "2x(A4 F) A2 F A F"),
        ("A A A F", "A3 F"),
        (" 6x( A4 F ) ", "6x(A4 F)"),
        ("(6x(A F))4", "4x(6x(A F))"),
        ("A4 F4x(A F)", "A4 F 4x(A F)"),
        ("4x(A4 F A2 F)", "4x(A4 F A2 F)"),
    ],
)
def test_other_ways_of_writing_mean_the_same(loose, text):
    assert notation(parse(loose)) == text


@pytest.mark.parametrize(
    ("text", "character", "problem"),
    [
        ("6x(A4 G)", 7, "unexpected 'G'"),
        ("6x(A4 F", 3, r"'\(' is never closed"),
        ("6x(A4 F))", 9, r"'\)' closes nothing"),
        ("", 1, "nothing to run"),
        ("6x()", 4, "nothing to run"),
        ("A0 F", 2, "a count must be from 1"),
        ("0x(A F)", 1, "a count must be from 1"),
        ("6(A F)", 2, "expected x"),
        ("6xA", 3, r"expected \("),
        ("A x", 3, "unexpected 'x'"),
        ("99999x(99x(A F))", 1, "more than 100,000 occurrences"),
        ("9" * 5000 + "x(A F)", 1, "a count must be from 1"),
        ("(" * 100, 21, "more than 20 parentheses"),
        ("(" * 20 + "A" + ")" * 19, 1, r"'\(' is never closed"),
        ("100001x(A F)", 1, "a count must be from 1 to 100,000"),
        ("50001x(A F)", 1, "more than 100,000 occurrences"),
        ("50000x(A F) A F", 1, "more than 100,000 occurrences"),
        ("A F A100000", 1, "more than 100,000 occurrences"),
        ("A@1", 1, "not an address"),
        ("A@0.0 A@0.0", 7, "comes a second time"),
        ("A F A@1.2", 1, "not an address"),
    ],
)
def test_an_error_points_at_the_character(text, character, problem):
    with pytest.raises(ValueError, match=f", character {character}: .*{problem}") as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_the_largest_schedules_are_read():
    assert len(parse("A100000")) == MAX_OCCURRENCES
    assert len(resolve("full_loop(50000)", 1)) == MAX_OCCURRENCES
    assert parse("(" * 20 + "A" + ")" * 20) == mixer_loop(1, 1)[:1]


def test_names_stand_for_loops_of_four_passes():
    assert resolve("mixer_loop", 6) == mixer_loop(6, 4)
    assert resolve("full_loop(2)", 6) == full_loop(6, 2)
    assert resolve("no_loop", 6) == no_loop(6)
    assert resolve("A@0.0 F@0.0", 6) == no_loop(1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mixer_lop", "did you mean mixer_loop?"),
        ("zzzz", "known: no_loop, mixer_loop"),
        ("full_loop()", "write a named loop as full_loop or full_loop(2)"),
        ("full_loop(-1)", "write a named loop as full_loop or full_loop(2)"),
        ("full_loop 2", "write a named loop as full_loop or full_loop(2)"),
        ("Full_Loop", "no loop has this name"),
        ("A F " * 1000, "A F A...' has 1000 layers; the model has 6"),
        ("mixer_loop(0)", "must be at least 1"),
        ("no_loop(3)", "no_loop makes one pass"),
        ("5x(A F)", "has 5 layers; the model has 6"),
        ("7x(A F)", "has 7 layers; the model has 6"),
        ("A@6.0", "has 7 layers; the model has 6"),
        ("full_loop(8334)", f"more than {MAX_OCCURRENCES:,} occurrences"),
        ("full_loop(999999999999)", f"more than {MAX_OCCURRENCES:,} occurrences"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(text, message):
    with pytest.raises(ValueError, match="schedule") as caught:
        resolve(text, 6)
    assert message in str(caught.value)
