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


named = st.one_of(
    st.builds(
        lambda name, layers, passes: LOOPS[name](layers, passes),
        *(st.sampled_from(sorted(LOOPS)), st.integers(1, 8), st.integers(1, 5)),
    ),
    st.lists(st.integers(1, 5), min_size=1, max_size=8).map(
        lambda counts: mixer_loop(len(counts), counts)
    ),
    st.builds(
        prelude_core_coda,
        num_prelude=st.integers(0, 4),
        num_core=st.integers(1, 4),
        num_coda=st.integers(0, 4),
        num_passes=st.integers(1, 4),
    ),
)


@given(named)
def test_every_named_loop_round_trips_without_addresses(schedule):
    assert parse(notation(schedule)) == schedule
    assert "@" not in notation(schedule)


@given(
    st.one_of(
        st.builds(in_order, steps),
        st.lists(occurrences, min_size=1, max_size=12, unique=True).map(tuple),
        texts.map(parse),
    )
)
def test_any_schedule_round_trips(schedule):
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
