"""Without its optional packages mixerloop works, and says which extra a feature is missing."""

import json
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from command_line import environment, mixerloop, refused
from mixerloop.data.sentencepiece_tokenizer import train_tokenizer
from mixerloop.installation import EXTRAS
from mixerloop.interop import transformers_kernels
from small_model import model_file, training_file

ROOT = Path(__file__).parents[2]
OPTIONAL = (
    *("transformers", "tokenizers", "accelerate", "lm_eval", "ray", "wandb", "fla", "triton"),
    *("onnxruntime", "onnx", "mlx", "playwright"),
)
BLOCK = f"import sys\nsys.modules.update(dict.fromkeys({OPTIONAL!r}))\n"  # as if not installed
FOR_CONTRIBUTORS = ("dev", "docs")
DISTRIBUTIONS = {"fla": "fla_core", "peers": "flash_linear_attention"}  # both have a package fla
ABOUT_OTHERS = {  # modules that are nothing without the package they are for
    "mixerloop.interop.hf": "mixerloop.interop.hf needs transformers: pip install 'mixerloop[hf]'",
    "mixerloop.interop.lm_eval": (
        "mixerloop.interop.lm_eval needs lm-eval: pip install 'mixerloop[lm-eval]'"
    ),
}
IMPORT_ALL = """
import importlib, json
errors = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        errors[name] = str(error)
print(json.dumps(errors))
"""


def in_a_fresh_process(script, *arguments, cwd, code=0):
    ended = subprocess.run(
        [sys.executable, "-c", BLOCK + script, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=environment(cwd),
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended


@pytest.fixture
def without_any(monkeypatch):
    for name in OPTIONAL:
        monkeypatch.setitem(sys.modules, name, None)


def modules():
    source = ROOT / "src"
    files = sorted((source / "mixerloop").rglob("*.py"))
    names = [".".join(file.relative_to(source).with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names]


def test_every_module_imports_without_them_or_names_the_extra(tmp_path):
    ended = in_a_fresh_process(IMPORT_ALL, *modules(), cwd=tmp_path)
    errors = json.loads(ended.stdout)
    assert len(modules()) > 100
    assert {name.removesuffix(".configuration").removesuffix(".modeling") for name in errors} == {
        *ABOUT_OTHERS
    }
    for name, error in errors.items():
        (expected,) = (text for module, text in ABOUT_OTHERS.items() if name.startswith(module))
        assert error == expected


@pytest.mark.slow
def test_the_whole_suite_is_collected_without_them():
    script = (
        "import pytest\nsys.exit(pytest.main(['-q', '--collect-only', '-p', 'no:cacheprovider']))"
    )
    ended = in_a_fresh_process(script, cwd=ROOT)
    files = {line.partition("::")[0] for line in ended.stdout.splitlines() if "::" in line}
    expected = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    assert expected - files == {
        "tests/parity/test_interop_fla.py",
        "tests/parity/test_interop_hf.py",
        "tests/parity/test_released_tokenizer.py",
    }


def test_exporting_a_tokenizer_names_the_extra(tmp_path, without_any):
    texts = (f"the {word} sat on the mat" for word in ("cat", "dog", "hat"))
    (tmp_path / "words.model").write_bytes(train_tokenizer(texts, vocab_size=280))
    (tmp_path / "small.toml").write_text(model_file(vocab_size=300))
    mixerloop("init", "small.toml", "--tokenizer", "words.model", "--out", "run", cwd=tmp_path)
    line = refused("export", "run", "--to", "hf", "--out", "hf", cwd=tmp_path)
    assert line.endswith("needs transformers: pip install 'mixerloop[hf]'")
    assert not (tmp_path / "hf").exists()


def test_a_tokenizer_json_names_the_extra(tmp_path, without_any):
    (tmp_path / "tokenizer.json").write_text("{}")
    command = ("init", "nano", "--tokenizer", "tokenizer.json", "--out", "run")
    line = refused(*command, cwd=tmp_path)
    needed = "a tokenizer.json needs tokenizers: pip install 'mixerloop[hf]'"
    assert line == f"mixerloop: tokenizer.json: {needed}"


def test_a_model_without_a_tokenizer_goes_there_and_back_without_them(tmp_path, without_any):
    (tmp_path / "small.toml").write_text(model_file())
    mixerloop("init", "small.toml", "--out", "run", cwd=tmp_path)
    mixerloop("export", "run", "--to", "hf", "--out", "hf", cwd=tmp_path)
    mixerloop("import", "hf", "--out", "back", cwd=tmp_path)
    first, second = (
        (tmp_path / run / "checkpoints/step-0/model.safetensors").read_bytes()
        for run in ("run", "back")
    )
    assert first == second


def test_installing_the_operator_in_transformers_names_the_extra(without_any):
    missing = r"needs transformers: pip install 'mixerloop\[hf\]'$"
    with pytest.raises(ValueError, match=missing):
        transformers_kernels.install()


def test_lm_eval_names_the_extra(without_any, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "mixerloop.interop.lm_eval", raising=False)
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("mixerloop.interop.lm_eval", run_name="__main__")
    assert stop.value.code == ABOUT_OTHERS["mixerloop.interop.lm_eval"]


@pytest.fixture
def place(tmp_path, hops_data):
    (tmp_path / "small.toml").write_text(training_file(str(hops_data), schedule="no_loop"))
    return tmp_path


def test_a_study_on_ray_names_the_extra(place, without_any):
    (place / "study.toml").write_text(
        'title = "On Ray"\n[[parts]]\nname = "hops"\nconfig = "small.toml"\nprepare = ["hops"]\n'
        'arms = ["no_loop"]\nseeds = [1]\nmeasure = ["nll"]\n'
    )
    ended = mixerloop("study", "study.toml", "--engine", "ray", cwd=place, code=2)
    assert ended.stderr == "mixerloop: engine ray needs Ray: pip install 'mixerloop[ray]'\n"


@pytest.mark.parametrize("begun", [False, True])
def test_weights_and_biases_names_the_extra(place, without_any, begun):
    command = ["train", "small.toml", "--out", "run"]
    if begun:
        mixerloop(*command, "--until", 1, cwd=place)
        command = ["train", "--resume", "run"]
    line = refused(*command, "--train.wandb", "tests", cwd=place)
    assert line.endswith("wandb is not installed: pip install 'mixerloop[wandb]'")
    assert (place / "run").exists() == begun


def test_the_form_fla_names_the_extra(place, without_any):
    line = refused("train", "small.toml", "--train.form", "fla", cwd=place)
    assert line.endswith("flash-linear-attention is not installed: pip install 'mixerloop[fla]'")


def test_the_doctor_says_what_each_missing_extra_gives(tmp_path, without_any):
    shown = mixerloop("doctor", cwd=tmp_path).stdout
    for name, extra in EXTRAS.items():
        assert f"  {name:<8} missing    {extra.gives}\n" in shown
    assert "pip install 'mixerloop[fla]'" in shown


def test_the_doctor_knows_the_extras_of_the_package():
    assert set(EXTRAS) == set(declared_extras()) - set(FOR_CONTRIBUTORS)


def test_an_extra_declares_the_packages_that_the_doctor_looks_for():
    for name, extra in EXTRAS.items():
        declared = [line.replace("-", "_") for line in declared_extras()[name]]
        for package in extra.packages:
            start = DISTRIBUTIONS[name] if package == "fla" else package
            assert any(line.startswith(start) for line in declared), package


def test_the_page_about_installing_has_every_extra():
    page = (ROOT / "docs" / "install.md").read_text()
    for name in (*EXTRAS, *FOR_CONTRIBUTORS):
        assert f"| `{name}` |" in page


def declared_extras():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
