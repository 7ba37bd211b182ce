"""Kill a run again and again; what comes out must be what an undisturbed run gives, bit for bit.

python benchmarks/kill_and_resume.py                # 20 kills
python benchmarks/kill_and_resume.py --kills 5 --compute-dtype bfloat16
python benchmarks/kill_and_resume.py --train 'depth = "uniform(1, 4)"'
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = """
[model]
num_layers = 2
d_model = 48
num_heads = 3
d_head = 16
d_ffn = 96
vocab_size = 12
schedule = "{schedule}"

[data]
path = "{data}"

[train]
steps = {steps}
global_batch = 16
micro_batch = 8
warmup_steps = 10
peak_lr = 2e-3
compute_dtype = "{compute_dtype}"
evaluate_every = 7
evaluate_windows = 32
checkpoint_every = 5
{train}
"""
STARTING = 0.3  # share of the kills at any moment; the others come after a step of their session


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--schedule", default="mixer_loop")
    parser.add_argument("--compute-dtype", default="float32")
    parser.add_argument("--train", nargs="*", default=[], help="more lines of [train], in TOML")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(0 if same_after_kills(Path(folder), options) else 1)


def same_after_kills(folder: Path, options: argparse.Namespace) -> bool:
    subprocess.run(command("data", "prepare", "hops", "--out", folder / "data"), check=True)
    config = folder / "config.toml"
    config.write_text(
        CONFIG.format(
            data=folder / "data",
            steps=options.steps,
            schedule=options.schedule,
            compute_dtype=options.compute_dtype,
            train="\n".join(options.train),
        )
    )
    whole, killed = folder / "undisturbed", folder / "killed"
    subprocess.run(command("train", config, "--out", whole), check=True)

    moments = random.Random(options.seed)  # noqa: S311
    for number in range(options.kills):
        process = subprocess.Popen(start_or_resume(config, killed), stderr=subprocess.DEVNULL)
        if number >= STARTING * options.kills:
            wait_for_a_step(process, killed)
            time.sleep(moments.uniform(0.0, 1.5))
        else:
            time.sleep(moments.uniform(0.1, 6.0))
        if process.poll() is not None:
            print(f"the run ended before kill {number + 1}; give it more --steps")
            return False
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        print(f"kill {number + 1}: {where(killed)}", flush=True)
    subprocess.run(start_or_resume(config, killed), check=True)

    files = [
        f"checkpoints/step-{options.steps}/model.safetensors",
        f"checkpoints/step-{options.steps}/optimizer/optimizer.safetensors",
        "metrics.jsonl",
    ]
    same = True
    for name in files:
        digests = [hashlib.sha256((run / name).read_bytes()).hexdigest() for run in (whole, killed)]
        same = same and digests[0] == digests[1]
        verdict = "the same" if digests[0] == digests[1] else f"DIFFERENT from {digests[1][:16]}"
        print(f"{name}: {digests[0][:16]}, {verdict}")
    print(
        f"{options.kills} kills, {options.steps} steps: {'bit-identical' if same else 'DIFFERENT'}"
    )
    return same


def wait_for_a_step(process: subprocess.Popen, run: Path) -> None:
    """Until this session has written a line of metrics."""
    metrics = run / "metrics.jsonl"
    before = metrics.stat().st_mtime_ns if metrics.exists() else 0
    cut = False  # resuming cuts the file back first, and that is no step
    while process.poll() is None:
        now = metrics.stat().st_mtime_ns if metrics.exists() else 0
        if now != before and cut:
            return
        cut, before = cut or now != before, now
        time.sleep(0.01)


def start_or_resume(config: Path, run: Path) -> list[str]:
    return (
        command("train", "--resume", run)
        if run.exists()
        else command("train", config, "--out", run)
    )


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "mixerloop", *map(str, arguments)]


def where(run: Path) -> str:
    if not run.exists():
        return "before the run was there"
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    saved = max(int(path.name[5:]) for path in (run / "checkpoints").glob("step-*"))
    partial = "while a checkpoint was written" if any(run.rglob(".*.partial")) else ""
    last = 0
    for line in lines:
        try:
            last = json.loads(line)["step"]
        except ValueError:
            partial = "in the middle of a line"
    return f"after step {last}, checkpoint {saved} {partial}".rstrip()


if __name__ == "__main__":
    main()
