"""Streams that are closed, full or broken, and signals at every moment of a process."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import COMMAND, environment, refused
from mixerloop import start
from mixerloop.program import _exit_code

CODES = [(number, 128 + number) for number in start.STOPPING]
PATIENCE = 120
PROGRAM = """
import os, signal, sys, time
from mixerloop.program import run_program, is_stopping
{body}
run_program(work)
"""

EARLY = """
import os
from mixerloop import start
start.begin()
os.write(1, b"!")
from mixerloop.__main__ import main
main()
"""


def hear_all():
    """A shell starts background work with Ctrl-C ignored, and what it starts inherits that."""
    for number in start.STOPPING:
        signal.signal(number, signal.SIG_DFL)


def without(descriptors):
    def close():
        hear_all()
        for number in descriptors:
            os.close(number)

    return close


def program(body, **options) -> subprocess.CompletedProcess[str]:
    """Run a function `work` as a process of ours."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        **{"preexec_fn": hear_all, "text": True, "timeout": PATIENCE, **options},
        env=environment("."),
    )


def captured(body, **options) -> subprocess.CompletedProcess[str]:
    return program(body, capture_output=True, **options)


@pytest.mark.parametrize("descriptors", [(1,), (0, 1, 2)])
def test_a_verb_works_with_closed_streams(descriptors, tmp_path):
    done = subprocess.run(
        [*COMMAND, "data", "prepare", "hops", "--out", "hops"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        preexec_fn=without(descriptors),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert (b"next: " in done.stdout) == (1 not in descriptors)
    assert [path.name for path in tmp_path.iterdir()] == ["hops"]


@pytest.mark.slow
def test_every_long_verb_works_with_closed_streams(hops_run, tmp_path):
    shutil.copytree(hops_run, tmp_path / "run")
    small = ("--windows", "4", "--positions", "4")
    for arguments, made in (
        (["train", "--resume", "run"], "run/checkpoints/step-4/contents.json"),
        (["evaluate", "nll", "run"], "run/results/nll.json"),
        (["transport", "run", *small], "run/results/figures/transport-gain.png"),
        (["export", "run", "--out", "exported"], "exported/model.safetensors"),
        (["report", "run", "--out", "page.html"], "page.html"),
    ):
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            preexec_fn=without((0, 1, 2)),
        )
        assert (done.returncode, done.stderr) == (0, b""), arguments
        assert (tmp_path / made).is_file()


@pytest.mark.parametrize("descriptors", [(0,), (1,), (2,), (0, 1, 2)])
def test_no_file_is_opened_in_the_place_of_a_closed_stream(descriptors, tmp_path):
    path = tmp_path / "descriptors"
    captured(
        f"""
def work():
    with open({str(path)!r}, "w") as file:
        os.write(2, b"of compiled code")
        print("to stderr", file=sys.stderr)
        print("to stdout", flush=True)
        print(file.fileno(), os.get_inheritable(2), sys.stdin.read(), file=file)
""",
        preexec_fn=without(descriptors),
        **({} if 0 in descriptors else {"stdin": subprocess.DEVNULL}),
    )
    number, inheritable, *read = path.read_text().split()
    assert (int(number) > 2, inheritable, read) == (True, "True", [])


@pytest.mark.parametrize("arguments", [["--help"], ["data", "prepare", "hops"]])
def test_a_full_stdout_is_named_and_the_work_is_done(arguments, tmp_path):
    out = ["--out", "hops"] if "hops" in arguments else []
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments, *out],
            cwd=tmp_path, env=environment(tmp_path), stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        2,
        "mixerloop: stdout: No space left on device\n",
    )
    assert (tmp_path / "hops" / "manifest.json").is_file() == bool(out)


def test_a_full_stderr_does_not_stop_the_work():
    with Path("/dev/full").open("w") as full:
        done = program(
            """
def work():
    import warnings
    for _ in range(3):
        print("progress", file=sys.stderr)
        warnings.warn("a warning")
    print("done")
""",
            stdout=subprocess.PIPE,
            stderr=full,
        )
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_a_reader_of_stderr_that_goes_away_does_not_stop_the_work(tmp_path):
    body = f"""
def work():
    for _ in range(20):
        print("progress", file=sys.stderr)
        time.sleep(0.01)
    open({str(tmp_path / "done")!r}, "w").close()
    raise ValueError("something is wrong")
"""
    script = PROGRAM.format(body=body)
    done = subprocess.run(
        ["bash", "-c", '{ "$@" 2>&1 >&3 | head -n 1; exit ${PIPESTATUS[0]}; } 3>&1', "bash",
         sys.executable, "-c", script],
        capture_output=True, text=True, env=environment("."), timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "progress\n")
    assert (tmp_path / "done").exists()


def test_a_broken_pipe_that_is_not_stdout_is_an_error():
    done = captured("""
def work():
    raise BrokenPipeError(32, "Broken pipe", "a pipe to a worker")
""")
    assert (done.returncode, done.stderr) == (2, "mixerloop: a pipe to a worker: Broken pipe\n")


@pytest.mark.parametrize(("number", "code"), CODES)
def test_a_signal_removes_half_written_files(number, code, tmp_path):
    done = captured(f"""
def work():
    from pathlib import Path
    from mixerloop.files import new_folder
    with new_folder(Path({str(tmp_path)!r}) / "made"):
        os.kill(os.getpid(), {int(number)})
        time.sleep(20)
""")
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_the_shell_had_ignored_stays_ignored(number):
    def ignore():
        hear_all()
        signal.signal(number, signal.SIG_IGN)

    child = f"import signal; print(signal.getsignal({int(number)}) is signal.SIG_IGN)"
    done = captured(
        f"""
def work():
    import subprocess
    os.kill(os.getpid(), {int(number)})
    time.sleep(0.1)
    print("at work", flush=True)
    subprocess.run([sys.executable, "-c", {child!r}])
""",
        preexec_fn=ignore,
    )
    assert (done.returncode, done.stdout) == (0, "at work\nTrue\n")


@pytest.mark.parametrize(("number", "code"), CODES[:1])
def test_a_second_signal_does_not_interrupt_the_cleaning_up(number, code, tmp_path):
    done = captured(f"""
def work():
    try:
        os.kill(os.getpid(), {int(number)})
        time.sleep(20)
    finally:
        for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), other)
            time.sleep(0.01)
        open({str(tmp_path / "cleaned")!r}, "w").close()
""")
    assert done.returncode == code
    assert (tmp_path / "cleaned").exists()


@pytest.mark.parametrize(("number", "code"), CODES[1:2])
def test_a_signal_that_a_library_turns_into_another_error_is_still_a_signal(number, code):
    done = captured(f"""
def work():
    try:
        os.kill(os.getpid(), {int(number)})
        time.sleep(20)
    except BaseException:
        assert is_stopping()
        raise ValueError("could not determine the shape") from None
""")
    assert (done.returncode, done.stderr.strip()) == (code, "")


@pytest.mark.parametrize(("number", "code"), CODES[:1])
def test_a_signal_during_an_import_waits_for_the_import(number, code, tmp_path):
    (tmp_path / "delicate.py").write_text(f"""
import os, time
try:
    os.kill(os.getpid(), {int(number)})
    time.sleep(0.1)
except BaseException:
    print("swallowed")
print("imported", flush=True)
""")
    done = captured(f"""
def work():
    sys.path.insert(0, {str(tmp_path)!r})
    import delicate
    time.sleep(20)
""")
    assert (done.returncode, done.stdout) == (code, "imported\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "code"), CODES[2:])
def test_a_signal_while_the_process_ends_prints_nothing(number, code):
    done = captured(f"""
def work():
    import atexit
    atexit.register(lambda: (os.kill(os.getpid(), {int(number)}), time.sleep(20)))
""")
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_an_error_that_only_we_can_make_shows_its_traceback():
    done = captured("""
def work():
    raise RuntimeError("a bug")
""")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


LIMITS = (
    (MemoryError(), "the memory of this machine does not suffice"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "does not suffice"),
    (RuntimeError("Storage size calculation overflowed"), "a number is too large"),
    (OverflowError("int too large"), "a number is too large: int too large"),
    (RecursionError("too deep"), "something is nested too deeply: too deep"),
    (OSError(28, "No space left on device", "/dev/x"), "/dev/x: No space left on device; "),
    (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "does not suffice"),
    (OSError(24, "Too many open files"), "open files and pipes; raise ulimit -n"),
    (OSError(24, "Too many open files", "a.txt"), "a.txt: Too many open files"),
)


def test_a_folder_that_was_removed_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert _exit_code(lambda: pytest.fail("the work has begun")) == 2
    assert capsys.readouterr().err == (
        "mixerloop: the current folder was removed; change to a folder that is there\n"
    )


@pytest.mark.parametrize(("error", "said"), LIMITS)
def test_a_limit_of_the_machine_is_one_line(error, said, monkeypatch):
    def fails():
        raise error

    monkeypatch.setattr("mixerloop.cli.main.load_plugins", fails)
    assert said in refused("configs")


@pytest.mark.slow
@pytest.mark.parametrize("cases", [6, pytest.param(40, marks=pytest.mark.nightly)])
def test_a_signal_in_the_first_moments_prints_no_traceback(cases):
    """At random moments after the few milliseconds in which Python itself starts."""
    draws = random.Random(cases)
    for _ in range(cases):
        number, code = draws.choice(CODES)
        verb = draws.choice([["--help"], ["describe", "nano"], ["doctor"]])
        process = subprocess.Popen(
            [sys.executable, "-c", EARLY, *verb],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear_all,
            env=environment("."),
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.read(1) == "!"
        delay = draws.uniform(0.01, 1.5)
        time.sleep(delay)
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE)
        case = f"{number.name} {delay:.3f} s after the start of {verb}: {errors}"
        killed = -number  # at the very end, when our handlers are gone; a shell shows the same code
        assert process.returncode in (0, code, killed), case
        assert len(errors.splitlines()) <= 1, case
