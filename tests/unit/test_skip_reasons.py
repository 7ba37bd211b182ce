"""A run says what it skipped and why, and fails if there was no reason to."""

import pytest

import needs
from skip_reasons import Need, check_complete

pytest_plugins = "pytester"

CONFTEST = """
from skip_reasons import Need, SkipReasons

LACKING, THERE = Need("needs a moon", lambda: False), Need("needs a sun", lambda: True)

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SkipReasons([LACKING, THERE]))
"""
NIGHT = "from conftest import LACKING\nLACKING.or_skip()\nimport moon"
OK, FAILED = pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def ended(pytester, monkeypatch):
    """Run a file of tests with the plugin."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeconftest(CONFTEST)

    def run(content, *options):
        header = "import pytest\nfrom conftest import LACKING, THERE\ndef test_runs(): pass\n"
        pytester.makepyfile(header + content)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)

    return run


def test_skips_are_counted_by_reason(ended):
    result = ended(
        """
@LACKING.mark
@pytest.mark.parametrize("n", range(3))
def test_marked(n): raise AssertionError

@pytest.fixture
def moon(): LACKING.or_skip()

def test_of_a_fixture(moon): raise AssertionError

@THERE.mark
def test_under_the_sun(): THERE.or_skip()

@pytest.mark.xfail
def test_that_is_known_to_fail(): raise AssertionError
"""
    )
    assert result.ret == OK
    result.stdout.fnmatch_lines(["*= skipped =*", "4 tests: needs a moon"])
    result.stdout.no_fnmatch_line("*needs a sun*")
    result.assert_outcomes(passed=2, skipped=4, xfailed=1)


def test_a_file_that_skips_as_a_whole_is_counted_once(ended, pytester):
    pytester.makepyfile(test_night=NIGHT)
    result = ended("")
    assert result.ret == OK
    result.stdout.fnmatch_lines(["*= skipped =*", "1 file: needs a moon"])


@pytest.mark.parametrize(
    ("skip", "named"),
    [
        ('pytest.skip("no time")', "*::test_it: 'no time' is not in tests/needs.py"),
        ("pytest.importorskip('mooon')", "*::test_it: *mooon* is not in tests/needs.py"),
        ("pytest.skip(THERE.reason)", "*::test_it: 'needs a sun', and it is here"),
    ],
)
def test_a_skip_without_a_reason_that_holds_fails_the_run(ended, skip, named):
    result = ended(f"def test_it(): {skip}")
    assert result.ret == FAILED
    result.stdout.fnmatch_lines(["*= skipped without a reason that holds here =*", named])
    result.assert_outcomes(passed=1, skipped=1)


@pytest.mark.slow
def test_the_skips_of_xdists_workers_are_seen(ended, pytester):
    pytester.makepyfile(test_night=NIGHT)
    content = """
@LACKING.mark
def test_marked(): raise AssertionError

def test_it(): pytest.skip(THERE.reason)
"""
    result = ended(content, "-n", "2")
    assert result.ret == FAILED
    result.stdout.fnmatch_lines(
        [
            "1 test and 1 file: needs a moon",
            "1 test: needs a sun",
            "*::test_it: 'needs a sun', and it is here",
        ]
    )


def test_a_full_run_refuses_to_begin_without_an_optional_package():
    there, missing = Need("needs a sun", lambda: True), Need("needs a moon", lambda: False)
    check_complete({"sun": there})
    with pytest.raises(pytest.UsageError, match=r"^--full: needs a moon$"):
        check_complete({"sun": there, "moon": missing})


def test_every_need_has_words_of_its_own():
    assert len({need.reason for need in needs.ALL}) == len(needs.ALL)


def test_a_part_of_a_package_is_found_without_importing_it():
    assert needs.is_installed("email.mime")
    assert not needs.is_installed("email.mima")
    assert not needs.is_installed("emale.mime")
