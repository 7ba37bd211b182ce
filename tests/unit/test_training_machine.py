"""What training asks of the machine: its types, its rate, its threads."""

import json
from dataclasses import replace

import pytest
import torch

from mixerloop import machine
from mixerloop.config import DataConfig, RunConfig, TrainConfig
from mixerloop.model.checkpoint import load_model
from mixerloop.model.device import find_device
from mixerloop.model.initialization import meta_model
from mixerloop.ops import precision
from mixerloop.training import core_share
from mixerloop.training import speed as rates
from mixerloop.training.metrics import JsonLines
from mixerloop.training.parallel import joined
from mixerloop.training.run_setup import begin, resumed_config, settled
from mixerloop.training.trainer import Trainer
from small_model import small_config

SMALL = small_config(num_layers=2, d_model=64, num_heads=4, d_head=16, d_ffn=168, vocab_size=12)


@pytest.fixture
def config(hops_data) -> RunConfig:
    train = TrainConfig(
        steps=4, global_batch=10, micro_batch=8, compute_dtype="float32", evaluate_windows=4
    )
    return RunConfig(model=SMALL, data=DataConfig(path=str(hops_data)), train=train)


@pytest.fixture
def restored_threads(monkeypatch):
    monkeypatch.delenv(machine.NUM_THREADS, raising=False)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def changed(config: RunConfig, **train) -> RunConfig:
    assert config.train is not None
    return replace(config, train=replace(config.train, **train))


def share_of(trainer):
    """The share of the cores that a session of this trainer begins with."""
    return core_share.core_share(
        trainer.loss, trainer.computation, compiled=False, read=lambda: trainer.batches.read(0)
    )


def trained(run, config):
    opened = begin(run, settled(config))
    lines = JsonLines(run)
    outcome = Trainer(run, opened).train([lines])
    lines.close()
    model, _ = load_model(outcome.checkpoint)
    return model, (run / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("speedup", "dtype"), [(0.1, "float32"), (1.1, "float32"), (4, "bfloat16")]
)
def test_auto_is_the_faster_type_and_stays_what_it_was(
    speedup, dtype, config, tmp_path, monkeypatch
):
    config = changed(config, compute_dtype="auto")
    monkeypatch.setattr(precision, "bfloat16_speedup", lambda device: speedup)
    begun = begin(tmp_path / "run", settled(config)).recipe
    assert begun.train.compute_dtype == dtype
    monkeypatch.setattr(precision, "bfloat16_speedup", lambda device: 5.0 - speedup)
    resumed = resumed_config(
        tmp_path / "run", config_file=None, overrides={"train": {"compute_dtype": "auto"}}
    )
    assert resumed.train == begun.train
    other = "bfloat16" if dtype == "float32" else "float32"
    with pytest.raises(ValueError, match=f"compute_dtype was {dtype} and would be {other}"):
        resumed_config(
            tmp_path / "run", config_file=None, overrides={"train": {"compute_dtype": other}}
        )


def test_a_type_that_was_named_is_not_measured(monkeypatch):
    monkeypatch.setattr(precision, "bfloat16_speedup", lambda device: pytest.fail("measured"))
    for dtype in ("float32", "bfloat16"):
        assert precision.choose_compute_dtype(dtype, "cpu") == dtype


def test_the_speed_of_bfloat16_is_measured_once():
    precision.bfloat16_speedup.cache_clear()
    first = precision.bfloat16_speedup("cpu")
    assert first > 0
    assert precision.bfloat16_speedup("cpu") == first


def test_a_bad_second_does_not_lower_the_gemm_rate(monkeypatch):
    seconds = iter([9.0, 9.0, 9.0, 1.0, 1.5, 3.0, 1.1, 1.0, 9.0, 9.0])
    monkeypatch.setattr(rates, "_seconds_per_product", lambda x, weight: next(seconds))
    cpu = torch.device("cpu")
    rate = rates.gemm_rate(meta_model(SMALL), tokens=10, compute_dtype="float32", device=cpu)
    assert rate == 2 * 10 * 64 * 2 * 168 / 1.0


def test_no_step_is_faster_than_the_limit(config, tmp_path, monkeypatch):
    monkeypatch.setattr(rates, "gemm_rate", lambda *_, **__: 1.0)
    trained(tmp_path / "run", changed(config, steps=2))
    lines = (tmp_path / "run" / "timing.jsonl").read_text().splitlines()
    shares = [json.loads(line)["gemm_share"] for line in lines]
    assert len(shares) == 2
    assert shares[0] == 1.0
    assert max(shares) <= 1.0


def test_the_number_of_threads_changes_no_bit(config, tmp_path, restored_threads):
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(trained(tmp_path / str(threads), changed(config, steps=2)))
    (model, metrics), (other, other_metrics) = results
    assert other_metrics == metrics
    for name, weight in model.named_parameters():
        assert torch.equal(weight, other.get_parameter(name)), name


def test_threads_follow_the_neighbours_only_where_no_bit_depends_on_them(
    config, tmp_path, restored_threads, monkeypatch
):
    torch.set_num_threads(2)
    trainer = Trainer(tmp_path / "run", begin(tmp_path / "run", settled(config)))
    assert share_of(trainer)._follows
    monkeypatch.setenv(machine.NUM_THREADS, "2")
    assert not share_of(trainer)._follows, "the user has chosen"
    monkeypatch.delenv(machine.NUM_THREADS)
    accumulate = core_share.accumulate

    def depends_on_threads(engine, batch, computation):
        found = accumulate(engine, batch, computation)
        weight = trainer.model.final_norm.weight
        assert weight.grad is not None
        weight.grad += 1e-7 * torch.get_num_threads()
        return found

    monkeypatch.setattr(core_share, "accumulate", depends_on_threads)
    assert not share_of(trainer)._follows
    assert torch.get_num_threads() == 2
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_the_last_micro_batch_is_looked_at_too(config, tmp_path, restored_threads, monkeypatch):
    torch.set_num_threads(2)
    trainer = Trainer(tmp_path / "run", begin(tmp_path / "run", settled(config)))
    sizes = []
    accumulate = core_share.accumulate

    def recorded(engine, batch, computation):
        sizes.append(len(batch.inputs))
        return accumulate(engine, batch, computation)

    monkeypatch.setattr(core_share, "accumulate", recorded)
    share_of(trainer)
    assert sorted(sizes) == [2, 2, 8, 8]


@pytest.mark.parametrize(
    ("choice", "num_devices", "found"),
    [
        ("auto", 0, "cpu"),
        ("auto", 2, "cuda"),
        ("cpu", 2, "cpu"),
        ("cuda", 1, "cuda"),
        ("cuda:0", 1, "cuda:0"),
        ("cuda:1", 2, "cuda:1"),
        ("cuda", 0, "device = cuda, and torch finds no CUDA device here"),
        ("cuda:0", 0, "device = cuda:0, and torch finds no CUDA device here"),
        ("cuda:1", 1, "device = cuda:1, and torch finds one CUDA device here"),
        ("cuda:", 1, "unknown device 'cuda:'; did you mean cuda?"),
        ("cpu:0", 1, "unknown device 'cpu:0'; did you mean cpu?"),
        ("mps", 1, "unknown device 'mps'"),
    ],
)
def test_a_device_is_found_or_named(choice, num_devices, found, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_devices)
    if "device" in found:
        with pytest.raises(ValueError, match=found.replace("?", r"\?")):
            find_device(choice, option="device")
    else:
        assert find_device(choice, option="device") == torch.device(found)


@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_RANK"])
def test_a_number_of_torchrun_that_is_none_is_named(monkeypatch, name):
    monkeypatch.setenv(name, "two")
    with pytest.raises(ValueError, match=f"the environment has {name} = 'two'"), joined("cpu"):
        pass
