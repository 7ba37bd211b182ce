"""What runs the tests: the table of the nightly parts, and the names of the slowest tests."""

import nightly

pytest_plugins = "pytester"

SLOWEST = """
import slowest

def pytest_addoption(parser):
    slowest.add_options(parser)

def pytest_configure(config):
    config.pluginmanager.register(slowest.Slowest(config.getoption("--budget")))
"""


def test_a_nightly_part_replaces_its_own_line_only():
    page = nightly.PAGE.read_text()
    once = nightly.with_line(page, "kills", "| kills | first |\n")
    both = nightly.with_line(once, "fuzz", "| fuzz | first |\n")
    again = nightly.with_line(both, "kills", "| kills | second |\n")
    assert again == both.replace("| kills | first |", "| kills | second |")
    assert again.count(nightly.HEAD) == 1
    assert again.index("| kills |") < again.index("| fuzz |")
    assert again.startswith(page[: page.index(nightly.BEGIN)])
    assert again.endswith(page[page.index(nightly.END) :])


def test_only_a_run_over_its_budget_names_its_slowest_tests(pytester):
    pytester.makeconftest(SLOWEST)
    pytester.makepyfile("def test_a(): pass")
    quick = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--budget", "1000")
    quick.stdout.no_fnmatch_line("*the budget is*")
    late = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--budget", "0")
    late.stdout.fnmatch_lines(["*the budget is 0 s*", "*test_a*"])
