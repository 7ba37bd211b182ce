"""Dataclasses from nested tables: mappings, fixed tuples and unions, read strictly."""

from dataclasses import dataclass, field

import pytest

from mixerloop.parsing import from_dict


@dataclass(frozen=True, kw_only=True)
class Inner:
    number: float


@dataclass(frozen=True, kw_only=True)
class Outer:
    ends: tuple[float, float] = (0.0, 1.0)
    by_name: dict[str, Inner] = field(default_factory=dict)
    by_number: dict[int, Inner] = field(default_factory=dict)
    mixed: str | int | bool | dict[str, str] | None = None
    maybe: Inner | None = None
    parent: str | None = field(default=None, metadata={"key": "from"})


def test_a_field_may_have_a_key_that_python_reserves():
    assert from_dict(Outer, {"from": "base"}).parent == "base"
    with pytest.raises(ValueError, match=r"unknown key parent; known: .*, from$"):
        from_dict(Outer, {"parent": "base"})
    with pytest.raises(ValueError, match=r"^part\.from = 3"):
        from_dict(Outer, {"from": 3}, "part.")


def test_nested_values_become_dataclasses_tuples_and_mappings():
    data = {
        "ends": [1, 2.5],
        "by_name": {"a": {"number": 1.0}},
        "by_number": {"3": {"number": 2.0}},
        "maybe": None,
    }
    assert from_dict(Outer, data) == Outer(
        ends=(1, 2.5), by_name={"a": Inner(number=1.0)}, by_number={3: Inner(number=2.0)}
    )


@pytest.mark.parametrize("value", ["a", 1, True, None, {"a": "b"}])
def test_the_option_of_a_union_that_fits_is_taken(value):
    found = from_dict(Outer, {"mixed": value}).mixed
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"ends": [1.0]}, r"ends must have 2 items, got 1"),
        ({"ends": [1.0, "x"]}, r"ends\[1\] = 'x'"),
        ({"ends": 1.0}, "ends must be a list"),
        ({"by_name": {"a": {"nmber": 1.0}}}, r"by_name\.a: unknown key nmber; did you mean number"),
        ({"by_name": []}, "by_name must be a table"),
        ({"by_number": {"x": {"number": 1.0}}}, "by_number: the keys must be numbers, got x"),
        ({"mixed": 1.5}, "mixed must be str or int or bool or dict, got 1.5"),
        ({"mixed": {"a": 1}}, "mixed must be"),
        ({"maybe": {}}, r"maybe\.number is missing"),
    ],
)
def test_a_value_that_does_not_fit_is_named(data, named):
    with pytest.raises(ValueError, match=named):
        from_dict(Outer, data)
