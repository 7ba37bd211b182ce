"""What is trained on is what was prepared: seals of prepared data and their check in training."""

import hashlib
import json
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.config import RunConfig
from mixerloop.data import data_check
from mixerloop.data.batches import Batches
from mixerloop.data.data_check import DataCheck
from mixerloop.data.prepared import open_prepared, verify_prepared
from mixerloop.data.sentencepiece_tokenizer import train_tokenizer
from mixerloop.data.shards import TokenSplit, read_manifest
from mixerloop.data.windows import Draw
from mixerloop.files import SealedFile
from mixerloop.training import speed
from mixerloop.training.metrics import Metrics, Timing
from mixerloop.training.sessions import resume, train
from mixerloop.training.status import status
from shared import tales
from small_model import training_file


@pytest.fixture
def text(text_data, tmp_path) -> Path:
    return Path(shutil.copytree(text_data, tmp_path / "text"))


@pytest.fixture
def hops(hops_data, tmp_path) -> Path:
    return Path(shutil.copytree(hops_data, tmp_path / "hops"))


@pytest.fixture
def config(text, tmp_path) -> RunConfig:
    steps = {"steps": 6, "checkpoint_every": 3, "evaluate_windows": 4, "tensorboard": False}
    content = training_file(str(text), context=8, vocab_size=300, train=steps)
    (tmp_path / "small.toml").write_text(content)
    return configs.load(tmp_path / "small.toml")


def flip(path: Path, place: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def other_tokenizer() -> bytes:
    return train_tokenizer(tales(40), vocab_size=290)


@pytest.mark.parametrize("name", ["manifest.json", "contents.json", "tokenizer.model"])
def test_a_flipped_bit_of_a_small_file_is_named_when_the_data_is_opened(text, name):
    size = (text / name).stat().st_size
    for place in np.random.default_rng(0).integers(size, size=9):
        flip(text / name, int(place))
        with pytest.raises(ValueError, match=rf"{name}: |contents\.json: "):
            open_prepared(text)
        flip(text / name, int(place))
    open_prepared(text)


def test_a_flipped_bit_in_the_settings_of_a_task_is_named(hops):
    text = (hops / "manifest.json").read_text()
    (hops / "manifest.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    assert (hops / "manifest.json").read_text() != text
    with pytest.raises(ValueError, match=r"manifest\.json: damaged, its sha256"):
        open_prepared(hops)


def test_another_tokenizer_is_not_trained_with(text, config, tmp_path):
    (text / "tokenizer.model").write_bytes(other_tokenizer())
    with pytest.raises(ValueError, match=r"tokenizer\.model: damaged"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_rejects_another_tokenizer(text, config, tmp_path):
    train(config, tmp_path / "run", until=2)
    copy = Path(shutil.copytree(text, tmp_path / "copy"))
    (copy / "tokenizer.model").write_bytes(other_tokenizer())
    with pytest.raises(ValueError, match=r"copy/tokenizer\.model: damaged"):
        resume(tmp_path / "run", overrides={"data": {"path": str(copy)}})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"train": []}, "train has no shards"),
        ({"vocab_size": -1}, "vocab_size must be at least 1"),
        ({"vocab_size": 100_000}, "100000 ids are not held in <u2"),
    ],
)
def test_a_manifest_that_no_preparation_writes_is_rejected_even_if_sealed(text, changes, problem):
    manifest = json.loads((text / "manifest.json").read_text()) | changes
    (text / "manifest.json").write_text(json.dumps(manifest))
    (text / "contents.json").unlink()
    with pytest.raises(ValueError, match=rf"manifest\.json: {problem}"):
        verify_prepared(text, seal=True)
    assert not (text / "contents.json").exists()


@pytest.mark.parametrize("name", ["../stories", "/etc/passwd", "", "a b"])
def test_a_shard_lies_in_its_folder(text, name):
    manifest = json.loads((text / "manifest.json").read_text())
    manifest["train"][0]["name"] = name
    (text / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="is not the name of a shard"):
        read_manifest(text)


def test_data_of_version_0_1_0_is_sealed_once_it_is_verified(text, hops):
    for folder in (text, hops):
        (folder / "contents.json").unlink()
        with pytest.raises(ValueError, match=r"contents\.json: missing, .*verify .* --seal"):
            open_prepared(folder)
        _, verdict = verify_prepared(folder, seal=True)
        assert verdict.endswith("; sealed")
        open_prepared(folder)
    flip(next(text.glob("train-*.tokens")), 0)
    (text / "contents.json").unlink()
    with pytest.raises(ValueError, match=r"\.tokens: damaged"):
        verify_prepared(text, seal=True)


def test_a_flipped_bit_in_training_tokens_stops_the_run_before_a_checkpoint(text, config, tmp_path):
    shard = next(text.glob("train-*.tokens"))
    flip(shard, 4)
    with pytest.raises(ValueError, match=rf"{shard.name}: damaged, .*step-0"):
        train(config, tmp_path / "run")
    assert list(runs.checkpoints(tmp_path / "run")) == [0]
    flip(shard, 4)
    assert resume(tmp_path / "run").outcome.finished


def test_a_drawn_window_comes_from_a_checked_shard(text):
    flip(next(text.glob("held_out-*.tokens")), 4)
    with pytest.raises(ValueError, match=r"held_out-.*\.tokens: damaged"):
        open_prepared(text).draw(Draw(num=2, num_positions=2, seed=0), context=8)
    with pytest.raises(ValueError, match=r"held_out-.*\.tokens: damaged"):
        open_prepared(text).samples(1, characters=20)


def test_the_provenance_has_the_fingerprint_of_the_tokens_that_were_read(text, config, tmp_path):
    train(config, tmp_path / "run")
    (session,) = runs.read_provenance(tmp_path / "run")["sessions"]
    files = sorted(text.glob("*.tokens")) + sorted(text.glob("*.docs"))
    assert session["data"]["files"] == len(files)
    assert session["data"]["bytes"] == sum(file.stat().st_size for file in files)
    lines = "".join(
        f"{file.path.name} {hashlib.sha256(file.path.read_bytes()).hexdigest()}\n"
        for file in open_prepared(text).sealed_files()
    )
    expected = hashlib.sha256(lines.encode()).hexdigest()
    assert session["data"]["content_sha256"] == expected


class AtStep:
    """A watcher that calls a function after a step."""

    def __init__(self, step: int, function) -> None:
        self.at, self.function = step, function

    def step(self, metrics: Metrics, timing: Timing) -> None:
        if metrics.step == self.at:
            self.function()

    def flush(self) -> None:
        pass

    close = flush


def test_a_run_whose_data_was_deleted_is_saved_with_its_tokenizer(text, config, tmp_path):
    tokenizer = (text / "tokenizer.model").read_bytes()
    copy = shutil.copytree(text, tmp_path / "copy")

    def delete() -> None:
        shutil.rmtree(text)
        os.kill(os.getpid(), signal.SIGTERM)

    stopped = train(config, tmp_path / "run", display=lambda _: AtStep(2, delete)).outcome
    assert (stopped.step, stopped.stopped_by) == (2, signal.SIGTERM)
    assert (stopped.checkpoint / "tokenizer.model").read_bytes() == tokenizer
    shutil.move(copy, text)
    ends = [resume(tmp_path / "run").outcome, train(config, tmp_path / "whole").outcome]
    weights = [(end.checkpoint / "model.safetensors").read_bytes() for end in ends]
    assert weights[0] == weights[1]


def test_the_work_is_saved_when_a_batch_cannot_be_read(config, tmp_path, monkeypatch):
    read = Batches.read_unless

    def fails_at_four(self, stopped, step):
        if step == 4:
            raise FileNotFoundError(2, "No such file or directory", "train-00000.tokens")
        return read(self, stopped, step)

    monkeypatch.setattr(Batches, "read_unless", fails_at_four)
    with pytest.raises(FileNotFoundError, match="train-00000"):
        train(config, tmp_path / "run")
    assert max(runs.checkpoints(tmp_path / "run")) == 4
    monkeypatch.undo()
    assert resume(tmp_path / "run").outcome.finished


def test_a_signal_does_not_wait_for_the_check_and_the_resumed_run_does(
    text, config, tmp_path, monkeypatch
):
    monkeypatch.setattr(data_check, "SHARE", 1e-9)  # the thread sleeps after its first block
    stop = AtStep(2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    stopped = train(config, tmp_path / "run", display=lambda _: stop).outcome
    assert not json.loads((stopped.checkpoint / "position.json").read_text())["data_checked"]
    shard = next(text.glob("train-*.tokens"))
    flip(shard, 4)
    with pytest.raises(ValueError, match="step-2, which was written before its data was checked"):
        resume(tmp_path / "run")
    flip(shard, 4)
    done = resume(tmp_path / "run").outcome
    assert json.loads((done.checkpoint / "position.json").read_text())["data_checked"]


def test_a_signal_ends_the_wait_for_the_check_and_a_finished_run_is_checked_later(
    text, config, tmp_path, monkeypatch
):
    def waits_for_a_signal(self, *, stopped):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped()

    last = replace(config.train, checkpoint_every=100)
    monkeypatch.setattr(data_check, "SHARE", 1e-9)
    monkeypatch.setattr(DataCheck, "finish", waits_for_a_signal)
    run = tmp_path / "run"
    ended = train(replace(config, train=last), run).outcome
    assert (ended.finished, ended.stopped_by) == (True, signal.SIGTERM)
    assert not json.loads((ended.checkpoint / "position.json").read_text())["data_checked"]
    assert status(run).state == "stopped"
    monkeypatch.undo()
    shard = next(text.glob("train-*.tokens"))
    flip(shard, 4)
    with pytest.raises(ValueError, match="step-6, which was written before its data was checked"):
        resume(run)
    assert status(run).state == "stopped"
    flip(shard, 4)
    assert resume(run).outcome.finished
    assert status(run).state == "finished"
    assert len(runs.read_provenance(run)["sessions"]) == 3
    resume(run)
    assert status(run).state == "finished"


def test_a_shard_that_is_cut_off_while_it_is_read_is_named(text):
    split = TokenSplit(text, "train", hashes_shards=False)
    whole = split.read(0, len(split))
    shard = next(text.glob("train-*.tokens"))
    with shard.open("r+b") as file:
        file.truncate(8)
    assert split.read(0, 2).tolist() == whole[:2].tolist()
    with pytest.raises(ValueError, match=r"train-.*\.tokens: damaged, it ends at byte 8"):
        split.read(0, len(split))


@pytest.mark.parametrize("damage", [lambda path: path.write_text("{}"), Path.unlink])
def test_a_provenance_that_is_damaged_in_training_costs_no_checkpoint(config, tmp_path, damage):
    run = tmp_path / "run"
    hurt = AtStep(2, lambda: damage(run / "provenance.json"))
    assert train(config, run, display=lambda _: hurt).outcome.finished
    assert "data" in runs.read_provenance(run)["sessions"][-1]


def test_a_signal_before_the_first_step_ends_the_session(config, tmp_path, monkeypatch):
    rate = speed.gemm_rate

    def signalled(*given, **how):
        os.kill(os.getpid(), signal.SIGTERM)
        return rate(*given, **how)

    monkeypatch.setattr(speed, "gemm_rate", signalled)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    stopped = train(config, tmp_path / "run").outcome
    assert (stopped.step, stopped.stopped_by) == (0, signal.SIGTERM)


def test_a_run_whose_recorder_fails_is_not_left_behind(config, tmp_path, monkeypatch):
    def refuses(*_, **__):
        raise ValueError("train.wandb = x: no key")

    monkeypatch.setattr("mixerloop.training.sessions._recorders", refuses)
    with pytest.raises(ValueError, match="no key"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_check_sleeps_between_blocks_until_somebody_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(data_check, "SHARE", 1e-9)
    path = tmp_path / "large"
    path.write_bytes(bytes(3 * data_check.BLOCK_BYTES))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    file = SealedFile(path=path, num_bytes=path.stat().st_size, sha256=digest)
    closed = DataCheck([file])
    closed.close()
    assert not closed.is_complete
    check = DataCheck([file])
    time.sleep(0.2)
    assert not check.is_complete
    check.finish(stopped=lambda: True)
    assert not check.is_complete
    check.finish(stopped=lambda: False)
    assert check.is_complete


@pytest.mark.parametrize(
    ("micro_batch", "problem"),
    [(1, r"train\.global_batch = 16,777,216: "), (None, "a micro-batch of 65,536 windows: ")],
)
def test_a_batch_that_memory_cannot_hold_is_rejected(config, tmp_path, micro_batch, problem):
    size = 2**24 if micro_batch else 2**16
    large = replace(
        config,
        model=replace(config.model, schedule="full_loop(64)"),
        data=replace(config.data, context=100),
        train=replace(config.train, global_batch=size, micro_batch=micro_batch),
    )
    with pytest.raises(ValueError, match=rf"{problem}.* of memory, and .* are free"):
        train(large, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_signal_ends_a_step_of_many_micro_batches(config, tmp_path):
    large = replace(config.train, global_batch=2**16, micro_batch=1)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    stopped = train(replace(config, train=large), tmp_path / "run").outcome
    assert (stopped.step, stopped.stopped_by) == (0, signal.SIGTERM)
    assert list(runs.checkpoints(tmp_path / "run")) == [0]


def test_a_batch_of_millions_stops_at_once(config):
    windows = open_prepared(config.data.path).windows("train", 8)
    batches = Batches(windows=windows, seed=0, global_batch=2**22)
    waiting = [False, False, True]
    began = time.perf_counter()
    reading = batches.prefetched(start=0, stop=3, stopped=lambda: waiting.pop(0))
    assert list(reading) == []
    assert time.perf_counter() - began < 5
