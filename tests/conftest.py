import signal
from collections.abc import Iterator

from mixerloop import machine, start
from small_model import small_config

machine.settle()  # before torch is loaded
for number in start.STOPPING:  # nohup and background shells ignore some, and children inherit that
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )

import shape_checks  # noqa: E402

shape_checks.install()  # before any module with shapes is imported

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

import needs  # noqa: E402
import passed_tests  # noqa: E402
import slowest  # noqa: E402
from chaos.counts import Counts  # noqa: E402
from instruction_sets import running_with  # noqa: E402
from mixerloop.config import ModelConfig  # noqa: E402
from mixerloop.training import speed  # noqa: E402
from passed_tests import PassedTests  # noqa: E402
from shared import hops_data, hops_run, text_data, text_run  # noqa: E402, F401
from skip_reasons import SkipReasons, check_complete  # noqa: E402
from slowest import Slowest  # noqa: E402

torch.set_num_threads(1)  # models this small only wait for a second thread, and so do neighbours
speed.MOST_SECONDS = 0.01  # each session of training times the machine: briefly, in tests
settings.register_profile("mixerloop", deadline=None, derandomize=True)
settings.load_profile("mixerloop")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="fail if an optional package is not installed"
    )
    passed_tests.add_options(parser)
    slowest.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # not in xdist's workers, which only run tests
        if config.getoption("--full"):
            check_complete(needs.PACKAGES)
        config.pluginmanager.register(SkipReasons(needs.ALL))
        config.pluginmanager.register(Counts())
        passed_to = config.getoption("--passed-to")
        if passed_to is not None:
            config.pluginmanager.register(PassedTests(passed_to))
        budget = config.getoption("--budget")
        if budget is not None:
            config.pluginmanager.register(Slowest(budget))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    passed_tests.leave_out(config, items)


@pytest.fixture(autouse=True)
def unaffected() -> None:
    """A test has the same threads, draws and checks of shapes, whichever tests ran before."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape_checks.check_again()


@pytest.fixture
def shapes_unchecked() -> Iterator[None]:
    """For tests of the errors that a user sees, in whose process no shape is checked."""
    with shape_checks.off():
        yield


@pytest.fixture
def tiny() -> ModelConfig:
    """Small enough to run in milliseconds, with sizes that are all different."""
    return small_config(num_layers=3, d_model=20, num_heads=2, d_head=8, d_ffn=28, vocab_size=50)


@pytest.fixture(
    params=[pytest.param(name, marks=need.mark) for name, need in needs.INSTRUCTION_SETS.items()]
)
def instruction_set(request) -> Iterator[str]:
    """Run a test with each instruction set the compiled kernels were built for."""
    with running_with(request.param):
        yield request.param
