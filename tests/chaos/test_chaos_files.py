"""Damaged files end in the undamaged result, or in one line that names the file."""

import pytest

import needs
from chaos.cases import READINGS
from chaos.damage import DAMAGES
from chaos.fixtures import MAKERS
from chaos.suite import SEED, run_suite

QUICK_CASES, CASES = 90, 1500


def test_a_sample_of_damaged_files_ends_well(tmp_path, record_property):
    options = ("files", "--quick", "--sample", QUICK_CASES, "--seed", SEED)
    tally = run_suite(*options, folder=tmp_path, record=record_property)
    assert tally["cases"] == QUICK_CASES
    assert set(tally["by_damage"]) == set(DAMAGES)


@pytest.mark.nightly
def test_damaged_files_of_every_fixture_end_well_under_every_verb(tmp_path, record_property):
    needs.package("transformers").or_skip()
    options = ("files", "--sample", CASES, "--seed", SEED)
    tally = run_suite(*options, folder=tmp_path, record=record_property)
    assert tally["cases"] >= CASES
    assert set(tally["by_verb"]) == {reading.name for reading in READINGS}


def test_every_reading_names_fixtures_that_can_be_made():
    for reading in READINGS:
        assert set(reading.brings + reading.damages) <= MAKERS.keys()
    names = [reading.name for reading in READINGS]
    assert len(set(names)) == len(names)
