"""The command as a user runs it: exit codes, signals, what is printed where."""

import io
import json
import shutil
import subprocess
import sys

import pytest
import sentencepiece

from command_line import mixerloop, refused
from mixerloop import runs
from mixerloop.data.sentencepiece_tokenizer import train_tokenizer
from mixerloop.files import check_seal, seal_folder
from mixerloop.ops.gated_delta_rule import choose_form


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "fresh"
    mixerloop("init", "nano", "--out", run)
    return run


@pytest.mark.parametrize(
    ("size", "parameters", "ffn_share", "ratio", "saving"),
    [("15m", 15_724_416, 0.612, 0.5409, 0.339), ("110m", 116_940_576, 0.613, 0.5401, 0.431)],
)
def test_describe_gives_programs_the_papers_figures(size, parameters, ffn_share, ratio, saving):
    described = json.loads(mixerloop("describe", size, "--json").stdout)
    assert described["parameters"] == parameters
    assert round(described["ffn_share"], 3) == ffn_share
    schedules = described["schedules"]
    assert list(schedules) == ["no_loop", "mixer_loop", "ffn_loop", "block_loop", "full_loop"]
    assert round(schedules["mixer_loop"]["backbone_ratio_to_full_loop"], 4) == ratio
    assert round(schedules["mixer_loop"]["saving_to_full_loop"], 3) == saving
    for account in schedules.values():
        assert {
            *("notation", "mixer_applications", "ffn_applications", "projection_macs_per_token"),
            *("backbone_ratio_to_full_loop", "saving_to_full_loop", "state_bytes_per_sequence"),
        } <= account.keys()


def test_describe_adds_schedules_to_the_named_ones():
    more = ["--schedule", "4x(A2 F)", "--schedule", "full_loop(2)"]
    described = json.loads(mixerloop("describe", "nano", "--json", *more).stdout)
    assert list(described["schedules"])[5:] == ["4x(A2 F)", "full_loop(2)"]
    assert described["schedules"]["full_loop(2)"]["notation"] == "2x(4x(A F))"


def test_describe_shows_people_the_paper_beside_ours():
    shown = mixerloop("describe", "15m").stdout
    for part in ("15,724,416", "15.7M", "61.2 %", "0.5409", "0.541", "33.9 %", "4x(6x(A F))"):
        assert part in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_fresh_run_says_where_it_came_from(fresh):
    provenance = json.loads((fresh / runs.PROVENANCE).read_text())
    assert provenance["seed"] == 1337
    mixing = {"native": {"gated_delta_mixing": "native"}}.get(
        choose_form("auto"), {"gated_delta_mixing": "torch", "gated_delta_rule": "torch"}
    )
    on_rows = ("cross_entropy", "rms_norm", "row_product", "swiglu")
    rows = dict.fromkeys(on_rows, choose_form("auto"))
    assert provenance["forms"] == mixing | rows
    assert (fresh / runs.CONFIG).exists()
    check_seal(fresh / "checkpoints" / "step-0")


def test_generate_continues_token_ids_the_same_way_twice(fresh):
    command = ["generate", fresh, "--prompt-tokens", 1, 2, 3, "--max-tokens", 5, "--seed", 7]
    first = json.loads(mixerloop(*command, "--json").stdout)
    shown = mixerloop(*command)
    assert shown.stdout.split() == [str(token) for token in first["tokens"]]
    assert "tokens/s" in shown.stderr
    assert first["schedule"] == first["run_schedule"] == "4x(A4 F)"
    assert first["form"] == choose_form("auto")
    assert len(first["tokens"]) == 5


def test_generate_runs_another_schedule_in_bfloat16_only_when_asked(fresh):
    command = ["generate", fresh, "--prompt-tokens", 1, "--max-tokens", 1, "--json"]
    options = ("--schedule", "full_loop(2)", "--compute-dtype", "bfloat16")
    result = json.loads(mixerloop(*command, *options).stdout)
    assert (result["schedule"], result["run_schedule"]) == ("2x(4x(A F))", "4x(A4 F)")
    assert result["tokens"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe", "15n"], "unknown preset or config '15n'; did you mean 15m?"),
        (["describe", "15m", "--schedule", "6x(A4 G)"], "'6x(A4 G)', character 7: unexpected 'G'"),
        (["describe", "15m", "--schedule", "6x(A0 F)"], "'6x(A0 F)', character 5: a count must be"),
        (["describe", "15m", "--schedule", "mixer_loop(0)"], "passes must be at least 1"),
        (["describe", "15m", "--schedule", "5x(A F)"], "has 5 layers; the model has 6"),
        (["init", "nano", "--out", "x", "--schedule", "mixer_lop"], "did you mean mixer_loop?"),
        (
            ["init", "nano", "--out", "x", "--tokenizer", "gone.model"],
            "gone.model: there is no such",
        ),
        (["generate", "gone", "--prompt-tokens", 1], "gone: there is no such run"),
        (["init", "nano", "--out", "x", "--seed", 2**64], "seed must be from 0"),
        (["init", "nano", "--out", "x", "--init", "xavier"], "unknown init rule 'xavier'"),
        (["init", "nano", "--out", "/proc/x"], "/proc/x: cannot be made"),
        (["describe", "gone.toml"], "gone.toml: there is no such file"),
        (["describe", "nano", "--picture", "gone/x.svg"], "there is no folder"),
        (["describe", "a\nb"], "unknown preset or config 'a b'"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused(*arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt-tokens", 4096], "token id 4096 is outside the vocabulary of 4,096"),
        (["--prompt-tokens", 1, "--compute-dtype", "float13"], "unknown compute type 'float13'"),
        (["--prompt-tokens", 1, "--form", "fast"], "unknown form 'fast'"),
        (["--prompt-tokens", 10**23], f"token id {10**23} is outside the vocabulary of 4,096"),
        (["--prompt-tokens", 1, "--seed", -1], "seed must be from 0"),
        (["--prompt-tokens", 1, "--max-tokens", 0], "max_tokens must be at least 1"),
        (["--prompt-tokens", 1, "--schedule", ""], "nothing to run"),
        (["--prompt-tokens", 1, "--stop", ""], "stop needs some text"),
        (["--prompt-tokens", 1, "--temperature", -1], "temperature must be 0 or more"),
        (["--prompt-tokens", 1, "--schedule", "4x(A F"], "'(' is never closed"),
        (["--prompt-tokens", 1, "--stop", "x"], "stop needs a run with a tokenizer"),
        (["--prompt", "hello"], "has no tokenizer; give the prompt as token ids"),
        ([], "give either --prompt or --prompt-tokens"),
    ],
)
def test_generate_refuses_what_it_cannot_do(fresh, options, message):
    assert message in refused("generate", fresh, *options)


def test_an_existing_run_is_not_overwritten(fresh):
    assert "already exists" in refused("init", "nano", "--out", fresh)


def test_a_config_file_can_stand_for_a_size(tmp_path):
    config = tmp_path / "mine.toml"
    config.write_text('[model]\npreset = "nano"\nd_ffn = 64\nschedule = "full_loop(2)"\n')
    described = json.loads(mixerloop("describe", config, "--json").stdout)
    assert described["ffn"]["projection_macs"] == 3 * 128 * 64
    mixerloop("init", config, "--out", tmp_path / "run")
    assert 'schedule = "2x(4x(A F))"' in (tmp_path / "run" / runs.CONFIG).read_text()
    config.write_text('[model]\npreset = "nano"\nnum_pases = 3\n')
    assert "mine.toml: model: unknown key num_pases" in refused("describe", config)


def test_the_doctor_names_the_form_and_what_is_missing():
    found = json.loads(mixerloop("doctor", "--json").stdout)
    assert found["form"] == ("native" if found["native_kernel"] else "torch")
    assert found["machine"]["cores"] >= 1
    said = mixerloop("doctor").stdout
    assert "\nnative kernel  " in said
    for name, there in found["extras"].items():
        assert (f"  {name:<8} installed " in said) == there


def test_a_signal_that_arrives_in_a_finalizer_is_not_lost():
    script = """
import os, signal, time
from mixerloop.cli import main

class Unlucky:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)

def run():
    Unlucky()
    time.sleep(30)

main._run = run
main.main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=20)
    assert done.returncode == 143, done.stderr


def test_a_config_with_an_unknown_key_is_refused(fresh, tmp_path):
    checkpoint = tmp_path / "step-0"
    checkpoint.mkdir()
    for file in (fresh / "checkpoints" / "step-0").iterdir():
        (checkpoint / file.name).write_bytes(file.read_bytes())
    with (checkpoint / runs.CONFIG).open("a") as config:
        config.write("num_pases = 3\n")
    assert "config.toml: damaged" in refused("generate", checkpoint, "--prompt-tokens", 1)
    seal_folder(checkpoint)
    assert "model.swiglu: unknown key num_pases" in refused(
        "generate", checkpoint, "--prompt-tokens", 1
    )


@pytest.mark.parametrize("arguments", [["describ", "15m"], ["describe", "15m", "--jsn"]])
def test_a_misspelt_verb_or_option_is_an_error(arguments):
    done = mixerloop(*arguments, code=2)
    assert "Traceback" not in done.stderr
    assert "describe" in done.stderr or "--json" in done.stderr


@pytest.mark.parametrize("arguments", ["describe nano --json", "--help"])
def test_a_reader_that_goes_away_is_no_error(arguments):
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m mixerloop {arguments} | head -c 1"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "cats.model"
    texts = ["the cat sat on the mat and the dog ran to the cat"] * 20
    path.write_bytes(train_tokenizer(texts, vocab_size=290))
    return path


@pytest.fixture(scope="module")
def fresh_text(tokenizer, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "text"
    mixerloop("init", "nano", "--out", run, "--tokenizer", tokenizer)
    return run


def test_generate_streams_text_and_stops_before_a_stop_text(fresh_text):
    command = ["generate", fresh_text, "--prompt", "the cat", "--max-tokens", 40, "--top-k", 250]
    text = json.loads(mixerloop(*command, "--json").stdout)["text"]
    assert len(text) > 10
    assert mixerloop(*command).stdout == text + "\n"
    stop = text[4:7]
    stopped = json.loads(mixerloop(*command, "--stop", stop, "--json").stdout)
    assert stopped["text"] == text[: text.index(stop)]
    assert mixerloop(*command, "--stop", stop).stdout == stopped["text"] + "\n"
    assert len(stopped["tokens"]) < 40


def test_the_tokenizer_is_sealed_with_the_weights(fresh_text, tmp_path):
    shutil.copytree(fresh_text / "checkpoints" / "step-0", tmp_path / "step-0")
    with (tmp_path / "step-0" / "tokenizer.model").open("ab") as file:
        file.write(b"x")
    message = refused("generate", tmp_path / "step-0", "--prompt", "the")
    assert "tokenizer.model: damaged" in message


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(tmp_path):
    model = io.BytesIO()
    words = " ".join(f"w{n}{chr(0x4E00 + n)}" for n in range(4200))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([words]), model_writer=model, vocab_size=4200, model_type="char",
        hard_vocab_limit=False, max_sentence_length=10**6, character_coverage=1.0, minloglevel=2,
    )  # fmt: skip
    path = tmp_path / "large.model"
    path.write_bytes(model.getvalue())
    message = refused("init", "nano", "--out", tmp_path / "run", "--tokenizer", path)
    assert "do not fit the vocabulary of 4,096 of nano" in message
    assert not (tmp_path / "run").exists()
