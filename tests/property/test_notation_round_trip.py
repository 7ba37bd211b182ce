from hypothesis import given
from hypothesis import strategies as st

from mixerloop.notation import notation, parse
from mixerloop.schedule import LOOPS, Occurrence, in_order, mixer_loop, prelude_core_coda

layer_numbers = st.integers(0, 3)
sublayers = st.sampled_from(["mixer", "ffn"])
steps = st.lists(st.tuples(layer_numbers, sublayers), min_size=1, max_size=24)
occurrences = st.builds(Occurrence, layer_numbers, sublayers, st.integers(0, 3))

letters = st.sampled_from(["A", "F"])
counts = st.integers(1, 3)
texts = st.recursive(
    letters,
    lambda inner: st.one_of(
        st.builds("{}{}".format, letters, counts),
        st.builds("({}){}".format, inner, counts),
        st.builds("{}x({})".format, counts, inner),
        st.lists(inner, min_size=1, max_size=3).map(" ".join),
    ),
    max_leaves=8,
)


@given(st.sampled_from(sorted(LOOPS)), st.integers(1, 8), st.integers(1, 5))
def test_every_named_loop_round_trips_without_addresses(name, num_layers, num_passes):
    schedule = LOOPS[name](num_layers, num_passes)
    assert parse(notation(schedule)) == schedule
    assert "@" not in notation(schedule)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_every_choice_of_passes_per_layer_round_trips_without_addresses(counts):
    schedule = mixer_loop(len(counts), counts)
    assert parse(notation(schedule)) == schedule
    assert "@" not in notation(schedule)


@given(st.integers(0, 4), st.integers(1, 4), st.integers(0, 4), st.integers(1, 4))
def test_every_prelude_core_coda_round_trips_without_addresses(prelude, core, coda, passes):
    schedule = prelude_core_coda(
        num_prelude=prelude, num_core=core, num_coda=coda, num_passes=passes
    )
    assert parse(notation(schedule)) == schedule
    assert "@" not in notation(schedule)


@given(steps)
def test_any_order_of_sublayers_round_trips(steps):
    schedule = in_order(steps)
    assert parse(notation(schedule)) == schedule


@given(st.lists(occurrences, min_size=1, max_size=12, unique=True))
def test_any_list_of_occurrences_round_trips(occurrences):
    schedule = tuple(occurrences)
    assert parse(notation(schedule)) == schedule


@given(texts)
def test_any_text_means_the_same_after_printing(text):
    schedule = parse(text)
    assert parse(notation(schedule)) == schedule


@given(st.text(alphabet="AFx()@. 0123", max_size=30))
def test_any_text_is_read_or_refused_in_one_line(text):
    try:
        schedule = parse(text)
    except ValueError as error:
        assert "character" in str(error)
        assert "\n" not in str(error)
    else:
        assert schedule
