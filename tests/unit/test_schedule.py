import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixerloop.notation import resolve
from mixerloop.schedule import (
    LOOPS,
    block_loop,
    ffn_loop,
    first_passes,
    full_loop,
    looped_layers,
    mixer_loop,
    no_loop,
    num_layers_of,
    num_passes_of,
    prelude_core_coda,
    repeated_unit,
)

layers = st.integers(1, 12)
loops = st.sampled_from(sorted(LOOPS.values(), key=str))


@given(layers, loops)
def test_one_pass_makes_every_loop_the_same_model(num_layers, loop):
    assert loop(num_layers, 1) == no_loop(num_layers)


def addresses(schedule):
    """A schedule as text: A for a mixer, F for an ffn, the layer and the pass."""
    return " ".join(f"{'AF'[o.sublayer == 'ffn']}{o.layer}.{o.pass_index}" for o in schedule)


@pytest.mark.parametrize(
    ("schedule", "order"),
    [
        (no_loop(2), "A0.0 F0.0 A1.0 F1.0"),
        (mixer_loop(2, 2), "A0.0 A0.1 F0.0 A1.0 A1.1 F1.0"),
        (mixer_loop(3, [3, 1, 2]), "A0.0 A0.1 A0.2 F0.0 A1.0 F1.0 A2.0 A2.1 F2.0"),
        (ffn_loop(2, 2), "A0.0 F0.0 F0.1 A1.0 F1.0 F1.1"),
        (block_loop(2, 2), "A0.0 F0.0 A0.1 F0.1 A1.0 F1.0 A1.1 F1.1"),
        (full_loop(2, 2), "A0.0 F0.0 A1.0 F1.0 A0.1 F0.1 A1.1 F1.1"),
        (
            prelude_core_coda(num_prelude=1, num_core=1, num_coda=1, num_passes=2),
            "A0.0 F0.0 A1.0 F1.0 A1.1 F1.1 A2.0 F2.0",
        ),
        (first_passes(mixer_loop(1, 3), 2), "A0.0 A0.1 F0.0"),
        (first_passes(full_loop(2, 2), 1), "A0.0 F0.0 A1.0 F1.0"),
    ],
)
def test_each_loop_runs_its_occurrences_in_this_order(schedule, order):
    assert addresses(schedule) == order


@pytest.mark.parametrize(
    ("schedule", "layers", "passes", "looped"),
    [
        (no_loop(3), 3, 1, range(3)),
        (mixer_loop(3, [1, 2, 1]), 3, 2, range(1, 2)),
        (prelude_core_coda(num_prelude=1, num_core=2, num_coda=1, num_passes=5), 4, 5, range(1, 3)),
    ],
)
def test_layers_and_passes_of_a_schedule_are_counted(schedule, layers, passes, looped):
    assert num_layers_of(schedule) == layers
    assert num_passes_of(schedule) == passes
    assert looped_layers(schedule) == looped


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mixer_loop(3, 0), "num_passes must be at least 1, got 0"),
        (lambda: full_loop(3, 0), "num_passes must be at least 1, got 0"),
        (lambda: full_loop(0, 1), "num_core must be at least 1, got 0"),
        (lambda: first_passes(full_loop(3, 4), 0), "num_passes must be at least 1, got 0"),
        (
            lambda: prelude_core_coda(num_prelude=-1, num_core=1, num_coda=0, num_passes=1),
            "num_prelude must be at least 0, got -1",
        ),
        (
            lambda: prelude_core_coda(num_prelude=0, num_core=1, num_coda=-1, num_passes=1),
            "num_coda must be at least 0, got -1",
        ),
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
