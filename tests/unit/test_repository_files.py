"""Files for contributors and citations say the same as the files they repeat."""

import re
from pathlib import Path

import yaml

import mixerloop

ROOT = Path(__file__).parents[2]


def test_pre_commit_runs_the_checks_of_make():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = [hook["entry"] for hook in repository["hooks"]]
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^check: (.+)$", makefile, re.MULTILINE)
    assert targets is not None
    commands = []
    for target in targets[1].split():
        recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
        assert recipe is not None, target
        commands += [line.replace("$(BIN)", ".venv/bin") for line in recipe[1].split("\n")[:-1]]
    assert sorted(hooks) == sorted(command.strip() for command in commands)
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}


def test_the_citation_names_this_version_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == mixerloop.__version__
    (paper,) = citation["references"]
    assert paper["url"] in (ROOT / "pyproject.toml").read_text()


def test_the_changelog_has_this_version():
    assert f"## [{mixerloop.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
