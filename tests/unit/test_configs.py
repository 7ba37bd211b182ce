"""The configs of the catalog: they load, and matched ones differ in what loops."""

import dataclasses
import tomllib

import pytest

from mixerloop import catalog, config
from mixerloop.config import PRESETS, ModelConfig, RunConfig, run_config
from mixerloop.schedule import LOOPS

FILES = sorted(catalog.CONFIGS.glob("*.toml"))
PAPER = ("no_loop", "mixer_loop", "full_loop")

TRAINED = {
    "model": {"preset": "nano"},
    "data": {"path": "somewhere", "context": 64},
    "train": {"steps": 2000},
}


FURTHER = "further"
"""The config without a model: its parent has one."""
FAMILIES = {path.stem: path for path in FILES if path.stem != FURTHER}
SCHEDULES = {
    **{f"{size}-climbmix": PAPER for size in ("15m", "42m", "110m")},
    "released-15m": (*PAPER, "ffn_loop"),
    **{f"nano-{data}": tuple(LOOPS) for data in ("stdlib", "hops")},
}
"""Each family of matched runs, and the schedules it is made for."""


def test_there_is_a_config_for_every_run_of_the_paper_and_for_a_laptop():
    assert set(FAMILIES) == set(SCHEDULES)


@pytest.mark.parametrize("family", sorted(SCHEDULES))
def test_matched_configs_differ_in_the_schedule_only(family):
    own = config.load(FAMILIES[family])
    assert own.model.schedule == "mixer_loop"
    for loop in SCHEDULES[family]:
        other = config.load(FAMILIES[family], {"model": {"schedule": loop}})
        other.for_training()
        assert other.model.schedule == loop
        same_loop = dataclasses.replace(other.model, schedule="mixer_loop")
        assert dataclasses.replace(other, model=same_loop) == own


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_config_loads_and_reads_back(path, tmp_path):
    base = PRESETS["15m"] if path.stem == FURTHER else None
    loaded = config.load(path, base=base)
    assert base is None or loaded.model == base
    (tmp_path / "config.toml").write_text(config.dump(loaded))
    assert config.differences(config.load(tmp_path / "config.toml"), loaded) == {}


@pytest.mark.parametrize("size", ["15m", "110m"])
def test_the_papers_configs_are_the_papers_recipe(size):
    loaded = config.load(FAMILIES[f"{size}-climbmix"])
    data, train = loaded.for_training()
    assert loaded.model == PRESETS[size]
    assert (train.peak_lr, train.warmup_steps, train.weight_decay) == (5e-4, 1000, 0.1)
    assert (train.clip_norm, train.compute_dtype, train.seed) == (1.0, "bfloat16", 1337)
    assert (train.steps, train.global_batch, data.context) == (100_000, 512, 1024)


def test_the_papers_recipe_is_the_default():
    text = FAMILIES["15m-climbmix"].read_text()
    said = tomllib.loads(text)["train"]
    default = run_config({**TRAINED, "train": {"steps": 100_000}}).train
    for key in ("global_batch", "peak_lr", "warmup_steps", "weight_decay", "clip_norm", "seed"):
        assert getattr(default, key) == said[key]


def test_an_override_takes_the_place_of_what_the_file_says(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('[model]\npreset = "nano"\n[data]\npath = "a"\n[train]\nsteps = 5000\n')
    loaded = config.load(
        path,
        {"train": {"tokens": 10**9, "seed": 7}, "data": {"path": "b"}, "model": {"preset": "15m"}},
    )
    data, train = loaded.for_training()
    assert (train.steps, train.tokens, train.seed) == (None, 10**9, 7)
    assert data.path == "b"
    assert loaded.model == PRESETS["15m"]


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("train", {"steps": None}, "give one of steps, tokens, flops, seconds; none is"),
        ("train", {"tokens": 5}, "steps and tokens are given"),
        ("train", {"stepz": 5}, "train: unknown key stepz; did you mean steps?"),
        ("train", {"steps": 0}, "train.steps must be above 0, got 0"),
        ("train", {"steps": True, "warmup_steps": 2}, "train.steps = True: bool is not"),
        (
            "train",
            {"steps": 20, "warmup_steps": 30},
            "train.warmup_steps = 30 is more than the 20 steps there are",
        ),
        ("train", {"seed": -1}, "seed must be from 0"),
        ("train", {"peak_lr": 0.0}, "train.peak_lr must be above 0"),
        ("train", {"clip_norm": float("inf")}, "train.clip_norm must be at most"),
        ("train", {"weight_decay": -0.1}, "train.weight_decay must be 0 or more"),
        ("train", {"micro_batch": 0}, "train.micro_batch must be at least 1"),
        ("train", {"keep_last": 0}, "train.keep_last must be at least 1"),
        ("train", {"compute_dtype": "float16"}, "train.compute_dtype = 'float16'"),
        ("train", {"parallel": "fdsp"}, "train.parallel = 'fdsp'"),
        ("data", {"context": 0}, "data.context must be at least 1"),
        ("data", {"path": None}, "data.path is missing"),
    ],
)
def test_what_cannot_be_trained_is_named(section, change, message):
    tables = TRAINED | {section: TRAINED[section] | change}
    tables = {
        name: {key: value for key, value in table.items() if value is not None}
        for name, table in tables.items()
    }
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        run_config(tables)
    assert message in str(caught.value)


def test_differences_are_named_by_section_and_key(tiny: ModelConfig):
    old = run_config(TRAINED)
    new = run_config(TRAINED, {"train": {"seed": 1, "micro_batch": 2}})
    assert config.differences(old, new) == {
        "train.seed": (1337, 1),
        "train.micro_batch": (None, 2),
    }
    assert config.differences(old, old) == {}
    assert "data.path" in config.differences(old, RunConfig(model=tiny))


@pytest.mark.parametrize(
    ("in_file", "as_option", "is_refused"),
    [
        ({"steps": 600, "warmup_steps": 60}, {"steps": 10}, False),
        ({"steps": 10}, {}, False),
        ({"warmup_steps": 60}, {"steps": 10}, False),
        ({"steps": 10, "warmup_steps": 60}, {}, True),
        ({"steps": 10}, {"warmup_steps": 60}, True),
        ({"steps": 600}, {"steps": 10, "warmup_steps": 60}, True),
    ],
)
def test_a_warm_up_is_refused_only_where_it_was_chosen(in_file, as_option, is_refused):
    tables = {"model": {"preset": "nano"}, "train": in_file}
    if is_refused:
        with pytest.raises(ValueError, match="warmup_steps = 60 is more than the 10 steps"):
            run_config(tables, {"train": as_option})
    else:
        train = run_config(tables, {"train": as_option}).train
        assert train is not None
        assert (train.steps, train.warmup_steps) == (10, 5)
