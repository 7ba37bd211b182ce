"""The examples of docs/api.md run as they are printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import mixerloop
from command_line import environment

ROOT = Path(__file__).parents[2]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "api.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_of_the_page_run(number, tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "example.py").write_text(EXAMPLES[number])
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] in ("resolved", "not resolved")


def test_every_public_name_is_there_and_explains_itself():
    for name in mixerloop.__all__:
        assert getattr(mixerloop, name).__doc__, name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'tran'"):
        mixerloop.tran  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_importing_the_package_loads_no_torch():
    program = "import sys, mixerloop; dir(mixerloop); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
