"""Strange values of options end in a result, or in one line that names the option or its value."""

import re

import pytest

import needs
from chaos.options import COMMANDS, VALUES, all_options
from chaos.suite import SEED, run_suite
from command_line import mixerloop

QUICK_CASES, CASES = 60, 700  # a case for each of 409 pairs of verb and value


def test_a_sample_of_strange_values_ends_well(tmp_path, record_property):
    options = ("options", "--quick", "--sample", QUICK_CASES, "--seed", SEED)
    tally = run_suite(*options, folder=tmp_path, record=record_property)
    assert tally["cases"] == QUICK_CASES


@pytest.mark.nightly
def test_strange_values_of_options_end_well_for_every_verb(tmp_path, record_property):
    needs.package("transformers").or_skip()
    options = ("options", "--sample", CASES, "--seed", SEED)
    tally = run_suite(*options, folder=tmp_path, record=record_property)
    assert tally["cases"] >= CASES
    assert set(tally["by_damage"]) >= set(VALUES)
    assert set(tally["by_verb"]) == {" ".join(verb) for verb in COMMANDS}


def test_every_verb_has_a_command_whose_values_are_replaced():
    assert {option.verb for option in all_options()} == COMMANDS.keys()


@pytest.mark.parametrize("verb", sorted(COMMANDS), ids=" ".join)
def test_every_option_in_the_help_of_a_verb_is_tried(verb):
    help_text = mixerloop(*verb, "--help").stdout
    shown = set(re.findall(r"^[\s|│]*(--[\w.-]*\w)", help_text, re.MULTILINE))
    assert shown - {"--help"} <= {option.name for option in all_options() if option.verb == verb}
