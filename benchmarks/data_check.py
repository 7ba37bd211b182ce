"""What checking the data costs: how soon training starts, and how fast it is meanwhile.

    python benchmarks/data_check.py [--other PYTHON] [--rounds 3]

Two folders are trained on, in turn: the standard library, and 170 sparse shards of 120 MB, which is
the size of the paper's corpus. `--other` names the Python of another installation, such as that of
an older version, which takes turns with this one. Printed are the seconds from the start of the
command to the first step in metrics.jsonl, the median tokens per second of the steps after the
third, and the seconds from the last step to the end of the command, in which the first checkpoint
waits for the check. Let nothing else run.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from mixerloop.data.corpora import prepare_stdlib
from mixerloop.data.shards import Shard, read_manifest, seal_manifest, write_manifest

NUM_SHARDS, SHARD_BYTES = 170, 120_000_000
STEPS = 40


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--other", help="the Python of another installation of mixerloop")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    pythons = {"this": sys.executable} | ({"other": options.other} if options.other else {})
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        prepare_stdlib(place / "stdlib")
        make_sparse(place / "stdlib", place / "sparse")
        for data in ("stdlib", "sparse"):
            seen: dict[str, list[tuple[float, float, float]]] = {name: [] for name in pythons}
            for number in range(options.rounds):
                for who, python in pythons.items():
                    run = place / f"{data}-{who}-{number}"
                    seen[who].append(timed(python, place / data, run))
            for who, rounds in seen.items():
                first, speed, end = (
                    statistics.median(column) for column in zip(*rounds, strict=True)
                )
                print(
                    f"{data:7} {who:6} first step after {first:6.2f} s, {speed:8,.0f} tokens/s, "
                    f"end {end:6.2f} s after the last step",
                    flush=True,
                )


def make_sparse(like: Path, folder: Path) -> None:
    """A folder with the tokenizer of another folder and shards of zeros that take no space."""
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes((like / "tokenizer.model").read_bytes())
    digest = hashlib.sha256(bytes(SHARD_BYTES)).hexdigest()
    docs = np.zeros((1, 2), dtype="<u8").tobytes()
    shards = []
    for number in range(NUM_SHARDS):
        name = f"train-{number:05d}-00000"
        with (folder / f"{name}.tokens").open("wb") as file:
            file.truncate(SHARD_BYTES)
        (folder / f"{name}.docs").write_bytes(docs)
        shards.append(
            Shard(
                name=name,
                tokens=SHARD_BYTES // 2,
                documents=1,
                text_bytes=SHARD_BYTES,
                tokens_sha256=digest,
                docs_sha256=hashlib.sha256(docs).hexdigest(),
            )
        )
    manifest = read_manifest(like)
    for shard in manifest.held_out:
        for suffix in ("tokens", "docs"):
            path = folder / f"{shard.name}.{suffix}"
            path.write_bytes((like / path.name).read_bytes())
    write_manifest(folder, replace(manifest, train=tuple(shards)))
    seal_manifest(folder)


def timed(python: str, data: Path, run: Path) -> tuple[float, float, float]:
    """Seconds to the first step, tokens per second, and seconds from the last step to the end."""
    config = run.with_suffix(".toml")
    config.write_text(
        f'[model]\npreset = "nano"\n[data]\npath = "{data}"\ncontext = 256\n'
        "[train]\nsteps = 100000\nglobal_batch = 8\ntensorboard = false\n"
    )
    began = time.time()
    process = subprocess.Popen(
        [
            *(python, "-m", "mixerloop", "train", str(config), "--out", str(run)),
            *("--until", str(STEPS), "--json"),
        ],
        stdout=subprocess.DEVNULL,
    )
    metrics = run / "metrics.jsonl"
    while not (metrics.is_file() and metrics.read_bytes().count(b"\n")):
        time.sleep(0.005)
        if process.poll() is not None:
            sys.exit(f"training ended with exit code {process.returncode} before its first step")
    first = time.time() - began
    while metrics.read_bytes().count(b"\n") < STEPS:
        time.sleep(0.005)
    last = time.time()
    if process.wait() != 0:
        sys.exit(f"training ended with exit code {process.returncode}")
    lines = [json.loads(line) for line in (run / "timing.jsonl").read_text().splitlines()]
    speed = statistics.median(line["tokens_per_second"] for line in lines[3:])
    return first, speed, time.time() - last


if __name__ == "__main__":
    main()
