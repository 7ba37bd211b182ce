import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import needs
from command_line import mixerloop
from made_once import made_once
from mixerloop.training.metrics import JsonLines
from quick_verbs import save_time
from small_model import training_file

STUDY = """
title = "A small study"
about = "For the tests."

[[parts]]
name = "hops"
config = "small.toml"
prepare = ["hops"]
seeds = [1, 2]
arms = [
    "no_loop", "mixer_loop(4)",
    { name = "deeper", schedule = "no_loop", layers_for_flops_of = "mixer_loop(4)" },
]
measure = ["nll", "hops", "transport"]

[parts.transport]
windows = 2
positions = 2
removal = true

[prefill]
sizes = ["nano"]
batches = [1]
length = 32
repeats = 2
"""


@pytest.fixture
def quick(monkeypatch) -> None:
    """Verbs that measure and draw take a moment; `monkeypatch.undo()` ends it."""
    save_time(monkeypatch)


@pytest.fixture(scope="session")
def finished_study(tmp_path_factory) -> Path:
    """A folder with a study of three models and two seeds: `study.toml`, `whole` and `said`.

    Read it only. It was made with `save_time`.
    """

    def make(place: Path) -> None:
        train = {"checkpoint_every": 2, "evaluate_every": 2}
        (place / "small.toml").write_text(training_file(train=train))
        (place / "study.toml").write_text(STUDY)
        with pytest.MonkeyPatch.context() as monkeypatch:
            save_time(monkeypatch)
            command = ("study", "study.toml", "--jobs", "1", "--out", "whole")
            (place / "said").write_text(mixerloop(*command, cwd=str(place)).stdout)

    return made_once(tmp_path_factory, "finished-study", make)


@pytest.fixture(scope="session")
def measured_run(tmp_path_factory, hops_run) -> Path:
    """A copy of `hops_run` whose transport was measured. Read it only."""

    def make(place: Path) -> None:
        shutil.copytree(hops_run, place / "run")
        with pytest.MonkeyPatch.context() as monkeypatch:
            save_time(monkeypatch)
            mixerloop("transport", "run", "--windows", 2, "--positions", 2, cwd=str(place))

    return made_once(tmp_path_factory, "measured-run", make) / "run"


@pytest.fixture(scope="session")
def browser() -> Iterator:
    needs.CHROMIUM.or_skip()
    with needs.module("playwright.sync_api").sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=needs.CHROMIUM_PROGRAM)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser) -> Callable:
    """A function that opens a file: the page, and all that it complained of or asked for."""

    def opened(file: Path, *, width: int = 1200, scheme: str = "light"):
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        heard: list[str] = []
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("file:", "data:", "blob:"))
                else heard.append(request.url)
            ),
        )
        page.goto(file.as_uri())
        return page, heard

    return opened


@pytest.fixture
def signal_in_step(monkeypatch) -> Callable[[int, int], None]:
    """A function that has this process send itself a signal after a step of training."""

    def plan(number: int, at: int) -> None:
        step = JsonLines.step

        def then(self, metrics, timing):
            step(self, metrics, timing)
            if metrics.step == at:
                os.kill(os.getpid(), number)

        monkeypatch.setattr(JsonLines, "step", then)

    return plan
