import dataclasses
import tomllib
from dataclasses import dataclass

import pytest

from mixerloop import config
from mixerloop.config import PRESETS, ModelConfig, RunConfig, preset, run_config
from mixerloop.parsing import from_dict


def test_a_preset_fills_in_what_is_not_given():
    resolved = run_config({"model": {"preset": "15m", "schedule": "6x(A2 F)"}}).model
    assert resolved == dataclasses.replace(PRESETS["15m"], schedule="6x(A2 F)")


@pytest.mark.parametrize("name", PRESETS)
def test_a_resolved_config_reads_back_as_the_same_model(name, tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(config.dump(RunConfig(model=preset(name))))
    back = config.load(path).model
    assert back.occurrences() == preset(name).occurrences()
    assert dataclasses.replace(back, schedule="mixer_loop") == preset(name)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('[model]\npreset = "15n"', "unknown preset '15n'; did you mean 15m?"),
        ("[modle]", "config: unknown key modle; did you mean model? known: model"),
        (
            '[model]\npreset = "15m"\nd_modle = 3',
            "model: unknown key d_modle; did you mean d_model?",
        ),
        ('[model]\npreset = "15m"\nd_model = "wide"', "model.d_model = 'wide': str is not an"),
        ('[model]\npreset = "15m"\nd_model = true', "model.d_model = True: bool is not an"),
        ('[model]\npreset = "15m"\nd_ffn = 0', "model.swiglu.d_ffn must be from 1 to"),
        ('[model]\npreset = "15m"\nnorm_eps = 0.0', "model.norm_eps must be above 0"),
        ('[model]\npreset = "15m"\nmixer = "mamba"', "model.mixer: unknown mixer 'mamba'"),
        (
            '[model]\npreset = "15m"\nschedule = "6x(A0 F)"',
            "model.schedule '6x(A0 F)', character 5",
        ),
        ('[model]\npreset = "15m"\nschedule = "5x(A F)"', "has 5 layers; the model has 6"),
        ("[model]\nnum_layers = 3", "model.d_model is missing"),
        ('[model]\npreset = "15m"\nmixer = []', "model.mixer: names no kind"),
        ('[model]\npreset = "15m"\nconv_width = 2000', "conv_width must be from 1 to 1,024"),
        (
            '[model]\npreset = "15m"\npass_damping = { unit = "mixer", share = inf }',
            "model.pass_damping.share must be finite, got inf",
        ),
        ("model = 3", "model must be a table, got 3"),
        ("", "model is missing"),
        ("[model", "not a config in TOML"),
        ("a = " + "[" * 100_000, "not a config in TOML"),
        ("[model]\npreset = []", "unknown preset '[]'"),
        ('[model]\npreset = "15m"\nnorm_eps = nan', "model.norm_eps must be above 0"),
        ('[model]\npreset = "15m"\nd_model = 99999999999999999999', "model.d_model must be from 1"),
    ],
)
def test_what_a_config_should_not_say_is_named(toml, message, tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(toml)
    with pytest.raises(ValueError, match=r"config\.toml") as caught:
        config.load(path)
    assert message in str(caught.value)


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int = 1


@dataclass(frozen=True, kw_only=True)
class Outer:
    maybe: int | None = None
    table: Inner | None = None
    names: tuple[str, ...] = ()
    tables: tuple[Inner, ...] = ()


def test_optional_values_lists_and_tables_are_read_strictly():
    assert from_dict(Outer, {}) == Outer()
    given = {"maybe": 3, "table": {"size": 2}, "names": ["a"], "tables": [{"size": 4}, {}]}
    expected = Outer(maybe=3, table=Inner(size=2), names=("a",), tables=(Inner(size=4), Inner()))
    assert from_dict(Outer, given) == expected
    for wrong, message in [
        ({"maybe": "x"}, "maybe = 'x': str is not an instance of int"),
        ({"table": 3}, "table must be a table, got 3"),
        ({"names": "a"}, "names must be a list, got 'a'"),
        ({"names": ["a", 2]}, r"names\[1\] = 2: int is not an instance of str"),
        ({"tables": [{}, {"sise": 4}]}, r"tables\[1\]: unknown key sise; did you mean size"),
    ]:
        with pytest.raises(ValueError, match=message):
            from_dict(Outer, wrong)


def test_every_field_explains_itself():
    source = config.__spec__.loader.get_source("mixerloop.config")  # pyright: ignore
    for field in dataclasses.fields(ModelConfig):
        after = source.split(f"\n    {field.name}:", 1)[1].split("\n", 2)[1]
        assert after.strip().startswith('"""'), field.name


@pytest.mark.parametrize(
    ("schedule", "unit"), [("no_loop", None), ("ffn_loop", "ffn"), ("full_loop", "stack")]
)
def test_the_released_residual_is_written_out_by_what_the_schedule_repeats(schedule, unit):
    model = preset("nano").changed(schedule=schedule, pass_residual="released")
    written = tomllib.loads(config.dump(RunConfig(model=model)))["model"]
    assert written.get("pass_residual") == (None if unit is None else {"unit": unit})


def test_a_schedule_without_a_unit_has_no_released_residual():
    with pytest.raises(ValueError, match="name a unit: mixer, ffn, block, stack"):
        preset("nano").changed(schedule="A2 F 2x(2x(A F)) A F", pass_residual="released")
