"""The examples of docs/api.md run as they are printed, one after another."""

import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import mixerloop
from command_line import environment

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
MOST_LINES = 12  # of the experiment, as a reader counts them
MARK = "-- next example --"


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What each example prints; they share a folder and their names, as cells of a notebook do."""
    place = tmp_path_factory.mktemp("notebook")
    (place / "eval_bundle").symlink_to(ROOT / "tests" / "data" / "core_bundle")
    done = subprocess.run(
        [sys.executable, "-c", f"\nprint({MARK!r})\n".join(EXAMPLES)],
        cwd=place,
        env=environment(place),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [text.strip().splitlines() for text in done.stdout.split(MARK)]


@pytest.mark.slow
def test_the_examples_of_the_page_run(printed):
    assert len(printed) == len(EXAMPLES)
    assert all(printed)
    lines = [line for line in EXAMPLES[0].splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES
    *figures, verdict = printed[0]
    assert [line.split()[0] for line in figures] == 2 * ["no_loop"] + 2 * ["mixer_loop"]
    assert verdict == "one seed: no verdict"
    (study,) = (lines for lines in printed if lines[-1].startswith("() ("))
    assert "held-out NLL, best first: " in study[-1]


def test_every_public_name_is_there_explains_itself_and_is_on_the_page():
    for name in mixerloop.__all__:
        assert getattr(mixerloop, name).__doc__, name
        assert name == "__version__" or f"`{name}" in PAGE or f"{name}(" in PAGE, name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'tran'"):
        mixerloop.tran  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_importing_the_package_loads_no_torch():
    program = "import sys, mixerloop; dir(mixerloop); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_the_package_says_that_it_is_typed():
    assert resources.files("mixerloop").joinpath("py.typed").is_file()
