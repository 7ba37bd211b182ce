"""Two questions about data: what does preparing cost beside tokenising, and does training wait?

    python benchmarks/data.py [--json]

Tokenising: preparing on one core (read, strip, hash, split, tokenise, write shards and records)
beside a bare SentencePiece loop over the same documents in memory, in turn. Waiting: the share of a
nano training step spent waiting for its batch, with the prefetching that training uses.
"""

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F

from mixerloop import machine
from mixerloop.benchmarking.measure import header
from mixerloop.config import preset
from mixerloop.data import prepare as preparing
from mixerloop.data.batches import Batches
from mixerloop.data.prepared import open_prepared
from mixerloop.data.shards import TokenSplit, verify
from mixerloop.data.sources import Source, standard_library
from mixerloop.data.tokenizer_files import open_tokenizer
from mixerloop.model.initialization import fresh_model

ROUNDS = 5
BATCH, CONTEXT, STEPS = 8, 256, 40


def prepared(folder: Path, tokenizer: Path | None, source: Source) -> Path:
    preparing.prepare(
        source,
        folder,
        settings=preparing.Settings(held_out_share=0.05, vocab_size=4096),
        given=None if tokenizer is None else open_tokenizer(tokenizer),
        workers=1,
        progress=lambda what, done, total: None,
    )
    return folder


def tokenising(folder: Path) -> dict[str, float]:
    """Tokens per second of the work of one worker beside the bare loop, alternating."""
    source = standard_library()
    tokenizer_path = folder / "tokenizer.model"
    tokenizer = open_tokenizer(tokenizer_path)
    texts = [text.strip() for file in source.files for text in file.documents() if text.strip()]
    num_tokens = sum(len(tokenizer.encode(text)) for text in texts)

    groups = preparing._groups(source, preparing._plan(source, preparing.Settings(), None))

    def bare() -> None:
        for text in texts:
            tokenizer.encode(text)

    def ours(out: Path) -> None:
        (out / preparing.RECORDS).mkdir(parents=True)
        shutil.copy(tokenizer_path, out)
        worker = preparing.Worker(
            folder=out,
            settings=preparing.Settings(held_out_share=0.05),
            tokenizer=tokenizer,
            excluded=np.empty(0, "<u8"),
        )
        for group in groups:
            for index, piece in enumerate(preparing._pieces(group, preparing.SMALLEST_PIECE)):
                worker.prepare(piece, None, group.index, index)

    seconds: dict[str, list[float]] = {"bare": [], "ours": []}
    for number in range(ROUNDS):
        began = time.perf_counter()
        bare()
        seconds["bare"].append(time.perf_counter() - began)
        with tempfile.TemporaryDirectory() as scratch:
            began = time.perf_counter()
            ours(Path(scratch) / str(number))
            seconds["ours"].append(time.perf_counter() - began)
    rates = {name: num_tokens / median(values) for name, values in seconds.items()}
    return {
        "tokens_per_second": rates["ours"],
        "bare_tokens_per_second": rates["bare"],
        "ratio": rates["ours"] / rates["bare"],
    }


def waiting(folder: Path) -> dict[str, float]:
    """The share of nano training steps spent waiting for the next batch."""
    model = fresh_model(preset("nano"), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    windows = open_prepared(folder).windows("train", CONTEXT)
    batches = Batches(windows=windows, seed=0, global_batch=BATCH)
    iterator = batches.prefetched(start=0, stop=STEPS)
    waited, began = 0.0, 0.0
    for step in range(STEPS):
        if step == 3:  # the first steps warm up
            waited, began = 0.0, time.perf_counter()
        asked = time.perf_counter()
        batch = next(iterator)
        waited += time.perf_counter() - asked
        logits = model(torch.from_numpy(batch.inputs))
        loss = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.labels).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    total = time.perf_counter() - began
    return {"waiting_share": waited / total, "seconds_per_step": total / (STEPS - 3)}


def main() -> None:
    machine.keep_off_hidden_amx()
    with tempfile.TemporaryDirectory() as scratch:
        folder = prepared(Path(scratch) / "stdlib", None, standard_library())
        verify(folder)
        assert len(TokenSplit(folder, "train")) > 10**6
        result = {"tokenising": tokenising(folder), "training": waiting(folder)}
    passed = result["tokenising"]["ratio"] >= 0.8 and result["training"]["waiting_share"] < 0.02
    if "--json" in sys.argv:
        print(json.dumps({"machine": machine.facts(), **result, "passed": passed}, indent=2))
    else:
        rates, steps = result["tokenising"], result["training"]
        print(f"# {header()}")
        print(
            f"preparing {rates['tokens_per_second']:,.0f} tokens/s per core, bare SentencePiece "
            f"{rates['bare_tokens_per_second']:,.0f}: ratio {rates['ratio']:.2f} (at least 0.8)"
        )
        print(
            f"nano step of {BATCH} x {CONTEXT} tokens {1e3 * steps['seconds_per_step']:.0f} ms, "
            f"waiting for data {steps['waiting_share']:.2%} of it (under 2 %)"
        )
    sys.exit(not passed)


if __name__ == "__main__":
    main()
