import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixerloop.notation import resolve
from mixerloop.schedule import (
    LOOPS,
    block_loop,
    ffn_loop,
    full_loop,
    mixer_loop,
    no_loop,
    prelude_core_coda,
    repeated_unit,
)

layers = st.integers(1, 12)
passes = st.integers(1, 6)
loops = st.sampled_from(sorted(LOOPS.values(), key=str))


@given(layers, loops)
def test_one_pass_makes_every_loop_the_same_model(num_layers, loop):
    assert loop(num_layers, 1) == no_loop(num_layers)


@given(layers, passes, loops)
def test_every_occurrence_is_a_unique_address(num_layers, num_passes, loop):
    schedule = loop(num_layers, num_passes)
    assert len(set(schedule)) == len(schedule)


@given(layers, passes)
def test_each_loop_repeats_what_its_name_says(num_layers, num_passes):
    def runs(schedule):
        return [sum(o.sublayer == s for o in schedule) // num_layers for s in ("mixer", "ffn")]

    assert runs(no_loop(num_layers)) == [1, 1]
    assert runs(mixer_loop(num_layers, num_passes)) == [num_passes, 1]
    assert runs(ffn_loop(num_layers, num_passes)) == [1, num_passes]
    assert runs(block_loop(num_layers, num_passes)) == [num_passes, num_passes]
    assert runs(full_loop(num_layers, num_passes)) == [num_passes, num_passes]


@given(layers, passes)
def test_block_loop_and_full_loop_run_the_same_occurrences_in_another_order(layer, num_passes):
    assert sorted(block_loop(layer, num_passes)) == sorted(full_loop(layer, num_passes))


def test_with_one_layer_block_loop_is_full_loop():
    assert block_loop(1, 4) == full_loop(1, 4)


def test_pass_counts_may_differ_by_layer():
    schedule = mixer_loop(3, [3, 1, 2])
    assert [sum(o.layer == n and o.sublayer == "mixer" for o in schedule) for n in range(3)] == [
        *(3, 1, 2)
    ]


def test_only_the_core_loops_between_prelude_and_coda():
    schedule = prelude_core_coda(num_prelude=1, num_core=2, num_coda=1, num_passes=3)
    assert [o.layer for o in schedule if o.sublayer == "ffn"] == [0, 1, 2, 1, 2, 1, 2, 3]
    assert [o.pass_index for o in schedule if o.layer == 2 and o.sublayer == "mixer"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mixer_loop(3, 0), "num_passes must be at least 1, got 0"),
        (lambda: full_loop(3, 0), "num_passes must be at least 1, got 0"),
        (lambda: block_loop(0, 2), "num_layers must be at least 1, got 0"),
        (lambda: mixer_loop(3, [1, 2]), "num_passes names 2 layers; the stack has 3"),
        (lambda: ffn_loop(2, [1, 0]), "num_passes must be at least 1, got 0"),
    ],
)
def test_impossible_counts_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        *(("no_loop", None), ("mixer_loop", "mixer"), ("ffn_loop(2)", "ffn")),
        *(("block_loop(3)", "block"), ("full_loop(2)", "stack"), ("A4 F A F A2 F", "mixer")),
        *(("A F 3x(A F A F)", "stack"), ("A F 2x(A F)", None), ("A F (A F)2 A F", "stack")),
        *(("2x(2x(A F)) A F", "stack"), ("(A F)3 A F (A F)2", "block")),
    ],
)
def test_what_a_schedule_repeats(text, unit):
    assert repeated_unit(resolve(text, 3)) == unit


def test_a_schedule_with_loops_of_two_sorts_has_no_unit():
    with pytest.raises(ValueError, match="neither as blocks nor as a stack"):
        repeated_unit(resolve("A2 F 2x(2x(A F)) A F", 4))
