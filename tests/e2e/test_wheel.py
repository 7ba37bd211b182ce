"""The wheel in a new environment: no source tree, no compiler, no git, and no extra.

The environment has the packages that the metadata of the wheel requires and those they require, as
links to the packages of the environment that runs the tests: torch is not installed twice.
"""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import mixerloop
import needs
from made_once import made_once
from mixerloop import catalog
from mixerloop.machine import WAITING

pytestmark = [pytest.mark.slow, needs.KERNEL.mark, needs.COMPILER.mark, needs.CMAKE.mark]
ROOT = Path(__file__).parents[2]
MOST_BYTES = 3_000_000
STEPS = 5
WHERE = """
import importlib.util, json, sys
import mixerloop
from mixerloop.ops import native_library
tools = ("_mixerloop_editable", "pytest", "hypothesis", "build")
print(json.dumps({
    "package": mixerloop.__file__,
    "version": mixerloop.__version__,
    "kernel": native_library.library()._name,
    "tools": [name for name in tools if importlib.util.find_spec(name)],
    "path": sys.path,
}))
"""


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel, and an empty folder to work in."""

    home: Path
    place: Path

    @property
    def programs(self) -> Path:
        """The only folder in which programs are looked for."""
        return self.home / "bin"

    def run(self, program: str, *arguments: str) -> str:
        """The output of a program of the environment, which must succeed."""
        waiting = {"OMP_NUM_THREADS": "1", **WAITING}
        ended = subprocess.run(
            [self.programs / program, *arguments],
            cwd=self.place,
            env={"PATH": str(self.programs), "HOME": str(self.place), **waiting},
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> Path:
    """The folder in which `make wheel` leaves the archive of the source and the wheel."""
    return made_once(tmp_path_factory, "archives", build)


def build(folder: Path) -> None:
    """Run `make wheel` with the packages installed here: it downloads nothing."""
    command = ["make", "wheel", f"DIST={folder}", f"BIN={Path(sys.executable).parent}"]
    ended = subprocess.run(
        [*command, "BUILD_OPTIONS=--no-isolation", "--old-file=.venv/.ready"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def wheel(archives) -> Path:
    (file,) = archives.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Installed:
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    install = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install"]
    options = ["--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*install, *options, wheel], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    for requirement in metadata.distribution("mixerloop").requires or []:
        link(Requirement(requirement), packages, extra="")
    return Installed(home, tmp_path_factory.mktemp("empty"))


def link(requirement: Requirement, packages: Path, *, extra: str) -> None:
    """Link a required package and everything that the package requires into a folder."""
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
        return
    package = metadata.distribution(requirement.name)
    tops = {file.parts[0] for file in package.files or [] if file.parts[0] != ".."}
    record = next(top for top in tops if top.endswith(".dist-info"))
    is_new = not (packages / record).exists()
    for top in tops - {"__pycache__"}:
        if not (packages / top).exists():
            (packages / top).symlink_to(str(package.locate_file(top)))
    for wanted in requirement.extras or ([""] if is_new else []):
        for inner in package.requires or []:
            link(Requirement(inner), packages, extra=wanted)


def test_the_wheel_is_small_and_named_for_what_it_holds(archives, wheel):
    assert wheel.stat().st_size < MOST_BYTES
    name, version, *_, platform = wheel.stem.split("-")
    assert (name, version) == ("mixerloop", mixerloop.__version__)
    assert (archives / f"mixerloop-{mixerloop.__version__}.tar.gz").exists()
    if sys.platform == "linux":
        assert platform.startswith("manylinux_")


def test_the_wheel_has_the_kernel_the_catalog_and_no_source_of_the_kernel(wheel):
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    assert "mixerloop/ops/_native.so" in names
    assert "mixerloop/reports/page.html.j2" in names
    assert "mixerloop/py.typed" in names
    for folder in (catalog.CONFIGS, catalog.STUDIES):
        files = {f"mixerloop/catalog/{folder.name}/{file.name}" for file in folder.glob("*.toml")}
        assert files
        assert files <= names
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"mixerloop", f"mixerloop-{mixerloop.__version__}.dist-info"}
    assert not [name for name in names if name.endswith((".cpp", ".h", ".pyc"))]


def test_the_package_comes_from_the_wheel(installed):
    found = json.loads(installed.run("python", "-c", WHERE))
    assert Path(found["package"]).is_relative_to(installed.home)
    assert Path(found["kernel"]).is_relative_to(installed.home)
    assert found["version"] == mixerloop.__version__
    assert found["tools"] == []
    assert not [entry for entry in found["path"] if Path(entry).is_relative_to(ROOT)]
    for tool in ("git", "c++", "g++", "cc", "gcc", "clang", "cmake", "ninja"):
        assert shutil.which(tool, path=str(installed.programs)) is None


def test_the_catalog_and_the_presets_are_there(installed):
    configs = json.loads(installed.run("mixerloop", "configs", "--json"))
    assert [config["name"] for config in configs] == catalog.config_names()
    studies = json.loads(installed.run("mixerloop", "studies", "--json"))
    assert "quick" in {study["name"] for study in studies}
    assert "6x(A4 F)" in installed.run("mixerloop", "describe", "15m")
    assert "24 cells" in installed.run("mixerloop", "study", "quick", "--dry-run")
    assert "native kernel  compiled" in installed.run("mixerloop", "doctor")
    assert list(installed.place.iterdir()) == []


def test_a_config_by_name_is_trained(installed):
    options = ["--model.schedule", "full_loop", "--train.steps", str(STEPS)]
    short = ["--train.evaluate_windows", "16"]
    installed.run("mixerloop", "train", "nano-hops", *options, *short, "--out", "runs/short")
    provenance = json.loads((installed.place / "runs/short/provenance.json").read_text())
    assert provenance["commit"] is None
    assert provenance["versions"]["mixerloop"] == mixerloop.__version__
    assert (installed.place / f"runs/short/checkpoints/step-{STEPS}").is_dir()


def test_a_short_quick_study_ends_with_its_report(installed):
    """The first part of the study, on hops, with two arms, one seed and few steps."""
    text = installed.run("mixerloop", "studies", "quick")
    hops = text.partition('[[parts]]\nname = "stdlib"')[0]
    changes = {
        r'    \{ schedule = "(mixer|ffn|block)_loop".*\n': "",
        r"tokens = [\d_]+": f"steps = {STEPS}",
        r"seeds = \[.*\]": "seeds = [1]\ntransport = { windows = 4, positions = 4 }",
        r"warmup_steps = \d+": "warmup_steps = 1",
        r"evaluate_windows = \d+": "evaluate_windows = 16",
    }
    for pattern, replacement in changes.items():
        hops, count = re.subn(pattern, replacement, hops)
        assert count, pattern
    (installed.place / "short.toml").write_text(hops)
    installed.run("mixerloop", "study", "short.toml", "--jobs", "1", "--out", "runs/study")
    report = (installed.place / "runs/study/report.html").read_text()
    assert "no_loop" in report
    assert "full_loop" in report
