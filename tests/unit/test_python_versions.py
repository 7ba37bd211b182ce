"""The package under the versions of Python it declares; torch is installed for only one of them."""

import ast
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

import mixerloop
import needs

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "mixerloop").rglob("*.py"))
OLDEST = (3, 11)
PURE = ("tomli_w", "typeguard", "typing_extensions.py")  # written in Python, for every version
SCRIPT = """
import sys
from pathlib import Path
for file in Path(sys.argv[1]).rglob("*.py"):
    compile(file.read_bytes(), str(file), "exec")
sys.path[:0] = sys.argv[1:3]
import mixerloop, mixerloop.runs
print("%d.%d" % sys.version_info[:2], mixerloop.load_config("nano-hops").model.schedule)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "version", [pytest.param(version, marks=need.mark) for version, need in needs.PYTHONS.items()]
)
def test_every_module_compiles_without_a_warning_and_a_config_is_read(version, tmp_path):
    program = needs.interpreter(version)
    assert program is not None
    for name in PURE:
        (tmp_path / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    ended = subprocess.run(
        [program, "-I", "-S", "-B", "-W", "error", "-c", SCRIPT, ROOT / "src", tmp_path],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"{version} {mixerloop.load_config('nano-hops').model.schedule}\n"


def test_the_syntax_is_that_of_the_oldest_version():
    assert len(SOURCES) > 100
    for file in SOURCES:
        ast.parse(file.read_text(), str(file), feature_version=OLDEST)


def test_the_declared_versions_agree():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    oldest = ".".join(map(str, OLDEST))
    assert declared["project"]["requires-python"] == f">={oldest}"
    assert declared["tool"]["pyright"]["pythonVersion"] == oldest
    assert sys.version_info >= OLDEST
    for version in needs.PYTHONS:
        assert f"Programming Language :: Python :: {version}" in declared["project"]["classifiers"]
