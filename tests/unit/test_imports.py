"""What must be quick loads no torch."""

import subprocess
import sys

import pytest

VERBS = [
    "describe",
    "init",
    "generate",
    "data",
    "train",
    "runs",
    "evaluate",
    "transport",
    "bench",
    "doctor",
    "configs",
    "studies",
]
COUNT = "import sys; {}; sys.exit(any(name.split('.')[0] == 'torch' for name in sys.modules))"


@pytest.mark.parametrize(
    "module",
    [
        *(
            "mixerloop",
            "mixerloop.schedule",
            "mixerloop.config",
            "mixerloop.runs",
            "mixerloop.catalog",
        ),
        *("mixerloop.results", "mixerloop.measures", "mixerloop.result_files"),
        *("mixerloop.study_folder", "mixerloop.evaluation.comparison", "mixerloop.reports.build"),
    ],
)
def test_importing_loads_no_torch(module):
    subprocess.run([sys.executable, "-c", COUNT.format(f"import {module}")], check=True)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["describe"],
        ["init"],
        ["generate"],
        ["train"],
        ["runs"],
        ["evaluate"],
        ["transport"],
        ["doctor"],
        ["configs"],
        ["studies"],
        ["completion"],
    ],
)
def test_help_loads_neither_torch_nor_a_package_of_tokenizers(arguments):
    run = (
        "from mixerloop.cli.main import main\n"
        f"sys.argv = ['mixerloop', *{arguments!r}, '--help']\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
    )
    slow = {"torch", "sentencepiece", "tokenizers"}
    script = f"import sys\n{run}\nassert not {slow!r} & sys.modules.keys()"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert "usage: mixerloop" in done.stdout


def test_completion_loads_neither_torch_nor_scipy():
    script = (
        "import sys\nsys.argv = ['mixerloop', 'completion', 'bash']\n"
        "from mixerloop.cli.main import main\nmain()\n"
        "assert not {'torch', 'scipy'} & sys.modules.keys()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert "complete -o default" in done.stdout


def test_studies_know_no_verb():
    script = (
        "import sys, mixerloop.studies.running, mixerloop.studies.on_ray, mixerloop.studies.text\n"
        "assert not [name for name in sys.modules if name.startswith('mixerloop.cli')]"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("module", ["benchmarking.settings", "studies.cell_process", "program"])
def test_what_comes_before_settling_loads_no_torch(module):
    """Settings are shown by --help; a cell's process settles the machine before torch is loaded."""
    script = COUNT.format(f"import mixerloop.{module}")
    subprocess.run([sys.executable, "-c", script], check=True)


def test_running_a_model_does_not_load_torchs_compiler():
    """It takes longer to load than all the rest, and training alone needs it."""
    script = (
        "import sys, torch\n"
        "from mixerloop.config import preset\n"
        "from mixerloop.model.initialization import fresh_model\n"
        "model = fresh_model(preset('nano'), seed=0)\n"
        "with torch.inference_mode():\n    model(torch.zeros(1, 3, dtype=torch.long))\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
