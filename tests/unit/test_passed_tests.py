"""Tests that passed are written down, and left out of the next run."""

import pytest

pytest_plugins = "pytester"

CONFTEST = """
import passed_tests

def pytest_addoption(parser):
    passed_tests.add_options(parser)

def pytest_configure(config):
    if config.getoption("--passed-to"):
        path = config.getoption("--passed-to")
        config.pluginmanager.register(passed_tests.PassedTests(path))

def pytest_collection_modifyitems(config, items):
    passed_tests.leave_out(config, items)
"""
TESTS = """
import pytest

@pytest.mark.parametrize("name", ["a b", "c"])
def test_passes(name): pass

def test_fails(): raise AssertionError

def test_skips(): pytest.skip("needs a moon")

@pytest.fixture
def broken():
    yield
    raise AssertionError

def test_of_a_broken_fixture(broken): pass
"""


@pytest.fixture
def run(pytester, monkeypatch):
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_all=TESTS)

    def ended(*options):
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)

    return ended


def test_what_passed_is_left_out_and_the_rest_runs_again(run, pytester):
    run("--passed-to", "passed").assert_outcomes(passed=3, failed=1, skipped=1, errors=1)
    names = (pytester.path / "passed").read_text().splitlines()
    assert "test_all.py::test_passes[a b]" in names
    assert not any("fails" in name or "skips" in name for name in names)
    again = run("--without-passed", "passed")
    again.assert_outcomes(failed=1, skipped=1, deselected=3)
