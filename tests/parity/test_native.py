"""The compiled kernel on every instruction set, on random cases, and under sanitizers."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import needs
from mixerloop.ops import native_library
from mixerloop.ops.gated_delta_rule import choose_form, gated_delta_rule
from mixerloop.ops.native import SMALL
from rule_cases import GATED_DELTA_RULE, TOLERANCE, largest_error, make_inputs, random_case, results

__all__ = ["TOLERANCE", "largest_error", "random_case"]  # of benchmarks/fuzz_native.py
ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "mixerloop" / "ops" / "native"


@pytest.mark.parametrize(
    "cases",
    [pytest.param(9, marks=pytest.mark.slow), pytest.param(900, marks=pytest.mark.nightly)],
)
@needs.KERNEL.mark
def test_random_cases_of_every_operator_match_the_definition(cases):
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "fuzz_native.py", "--cases", str(cases)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{cases} cases of each on portable")


@needs.KERNEL.mark
def test_the_number_of_threads_changes_no_bit():
    inputs = make_inputs(**GATED_DELTA_RULE, seq=130, sizes=(30, 20), batch=8, heads=3)
    assert inputs["initial_state"].numel() * 130 > SMALL  # several threads would run
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2, 2):
        torch.set_num_threads(threads)
        found.append(results(inputs, "native", gated_delta_rule))
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(tensor, other[name]) for name, tensor in found[0].items())


@needs.KERNEL.mark
def test_an_instruction_set_this_machine_lacks_is_refused(monkeypatch):
    monkeypatch.setenv(native_library.SET_VARIABLE, "avx1024")
    with pytest.raises(ValueError, match="this machine has no 'avx1024'; it has portable"):
        native_library.instruction_set()


@needs.KERNEL.mark
def test_a_library_of_another_source_is_refused(monkeypatch):
    loaded = native_library.library()
    assert loaded is not None
    assert native_library._is_of_this_source(loaded)
    monkeypatch.setattr(native_library, "GROUP_TOKENS", 128)
    assert not native_library._is_of_this_source(loaded)


@needs.KERNEL.mark
def test_the_kernel_reads_nothing_but_plain_memory():
    x = torch.ones(3, 16, device="meta")
    with pytest.raises(ValueError, match="x is a Tensor on meta"):
        native_library.run("rms_norm", torch.float32, 3, 16, 1e-5, reads={"x": x}, writes={})


def test_without_the_kernel_auto_is_chunked_and_native_is_refused(monkeypatch):
    monkeypatch.setattr(native_library, "library", lambda: None)
    assert choose_form("auto") == "torch"
    with pytest.raises(ValueError, match=r"no compiled kernel; install mixerloop again"):
        choose_form("native")


@needs.KERNEL.mark
def test_auto_is_native():
    assert choose_form("auto") == "native"


@pytest.mark.slow
@needs.GCC.mark
@needs.X86.mark
def test_the_kernels_are_clean_under_sanitizers(tmp_path):
    compile_ = ["g++", "-std=c++17", "-O1", "-g", "-fsanitize=address,undefined", "-Wno-psabi"]
    compile_ += ["-fno-sanitize-recover=all", f"-I{SOURCES}"]
    sets = {
        "portable": ["-DVECTOR_BYTES=16"],
        "avx2": ["-DVECTOR_BYTES=32", "-mavx2", "-mfma"],
        "avx512": ["-DVECTOR_BYTES=64", "-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw"],
    }
    objects = []
    for name, flags in sets.items():
        objects.append(tmp_path / f"{name}.o")
        subprocess.run(
            [*compile_, *flags, f"-DISA={name}", "-c", SOURCES / "isa.cpp", "-o", objects[-1]],
            check=True,
        )
    program = tmp_path / "driver"
    driver = ROOT / "tests" / "native" / "driver.cpp"
    subprocess.run([*compile_, driver, SOURCES / "entry.cpp", *objects, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "calls" in done.stdout
