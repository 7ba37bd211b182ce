"""Random small cases of the native rule and the native mixer against their definitions in float64.

python benchmarks/fuzz_native.py                 # 10,000 cases over all instruction sets
python benchmarks/fuzz_native.py --cases 500
"""

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import torch

from mixerloop.ops import native_library

TESTS = Path(__file__).parents[1] / "tests"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tests, mixing = tests_of("test_native"), tests_of("test_gated_delta_mixing")
    generator = torch.Generator().manual_seed(options.seed)
    worst: dict[tuple[str, torch.dtype], float] = {}
    loaded = native_library.library()
    assert loaded is not None, "installed without a C++ compiler"
    sets = native_library.INSTRUCTION_SETS[: loaded.mixerloop_best_set() + 1]
    kinds = [(name, dtype) for name in sets for dtype in tests.TOLERANCE]
    for number in range(options.cases):
        instruction_set, dtype = kinds[number % len(kinds)]
        os.environ[native_library.SET_VARIABLE] = instruction_set
        native_library.reread_instruction_set()
        errors = {
            "rule": tests.largest_error(tests.random_case(generator), dtype),
            "mixer": mixing.largest_error(mixing.random_case(generator, dtype), dtype),
        }
        for name, error in errors.items():
            worst[name, dtype] = max(worst.get((name, dtype), 0.0), error)
            if not error < (tests if name == "rule" else mixing).TOLERANCE[dtype]:
                raise SystemExit(
                    f"case {number}, {name}, {instruction_set}, {dtype}: error {error:.2e}"
                )
    for (name, dtype), error in sorted(worst.items(), key=str):
        print(f"{name}, {dtype}: largest relative error {error:.1e}")
    print(f"{options.cases:,} cases of each on {', '.join(sets)}: all within tolerance")


def tests_of(name: str) -> ModuleType:
    """A file of parity tests, for its cases and its bounds."""
    sys.path.append(str(TESTS))  # for what the file imports beside it
    spec = importlib.util.spec_from_file_location(name, TESTS / "parity" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
