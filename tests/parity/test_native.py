"""The compiled kernel on every instruction set, on random cases, and under sanitizers."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import needs
from mixerloop.ops import native_library
from mixerloop.ops.gated_delta_rule import choose_form, gated_delta_rule

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "mixerloop" / "ops" / "native"
# bfloat16: what is stored is rounded, by 2^-9 of the value, and the gradients' own input is such.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 2.0**-7}


def random_length(generator):
    """Any length, and often one just before or after a chunk or a kept state ends."""
    edges = (1, 15, 16, 17, 63, 64, 65, 129)
    drawn = int(torch.randint(2 * len(edges), (), generator=generator))
    if drawn < len(edges):
        return edges[drawn]
    return int(torch.randint(1, 150, (), generator=generator))


def random_case(generator):
    dtype = torch.float64

    def number(most):
        return int(torch.randint(1, most + 1, (), generator=generator))

    batch, heads, d_key, d_value = (number(most) for most in (2, 3, 40, 40))
    seq = random_length(generator)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=dtype)

    brutality = 10.0 ** number(3) / 10
    return {
        "query": torch.nn.functional.normalize(normal(batch, seq, heads, d_key), dim=-1),
        "key": torch.nn.functional.normalize(normal(batch, seq, heads, d_key), dim=-1),
        "value": normal(batch, seq, heads, d_value),
        "log_decay": -(uniform(batch, seq, heads) ** 3) * brutality,
        "write_strength": uniform(batch, seq, heads),
        "initial_state": normal(batch, heads, d_key, d_value),
    }


def results(inputs, form):
    """Outputs and gradients, of a cotangent that bfloat16 holds exactly."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    outputs = gated_delta_rule(**leaves, form=form)
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(x.shape, generator=generator).bfloat16().to(x.dtype) for x in outputs]
    return [*outputs, *torch.autograd.grad(outputs, list(leaves.values()), given)]


def largest_error(inputs, dtype):
    """Of all outputs and gradients, relative to the largest value and never below one."""
    wide = torch.promote_types(dtype, torch.float32)
    types = {name: dtype if name in ("query", "key", "value") else wide for name in inputs}
    stored = {name: tensor.to(types[name]) for name, tensor in inputs.items()}
    wanted = results({name: tensor.double() for name, tensor in stored.items()}, "definition")
    got = results(stored, "native")
    return max(
        ((one.double() - other).abs().max() / other.abs().max().clamp_min(1)).item()
        for one, other in zip(got, wanted, strict=True)
    )


@needs.KERNEL.mark
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_random_cases_match_the_definition(instruction_set, dtype):
    """`python benchmarks/fuzz_native.py` runs ten thousand."""
    generator = torch.Generator().manual_seed(0)
    for number in range(40):
        inputs = random_case(generator)
        error = largest_error(inputs, dtype)
        assert error < TOLERANCE[dtype], f"case {number}: {error:.2e}"


@pytest.mark.slow
@needs.KERNEL.mark
def test_the_fuzzer_runs_on_every_instruction_set():
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "fuzz_native.py", "--cases", "9"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("9 cases of each on portable")


@needs.KERNEL.mark
def test_the_number_of_threads_changes_no_bit():
    inputs = random_case(torch.Generator().manual_seed(3))
    inputs = {name: torch.cat([tensor] * 4).float() for name, tensor in inputs.items()}
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2, 2):
        torch.set_num_threads(threads)
        found.append(results(inputs, "native"))
    torch.set_num_threads(before)
    for other in found[1:]:
        for mine, their in zip(found[0], other, strict=True):
            assert torch.equal(mine, their)


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
