"""Random small cases of the native operators against their definitions in float64.

python benchmarks/fuzz_native.py                 # 10,000 cases of each over all instruction sets
python benchmarks/fuzz_native.py --cases 500 --only linear_attention
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
    parser.add_argument("--only", default="", help="operators whose names begin like this")
    options = parser.parse_args()
    torch.set_num_threads(1)  # small cases: threads would only wait for each other
    rule, mixing, family = (
        tests_of(f"test_{name}") for name in ("native", "gated_delta_mixing", "linear_attention")
    )
    operators = {
        "gated_delta_rule": (rule, lambda generator, _: rule.random_case(generator)),
        "gated_delta_mixing": (mixing, mixing.random_case),
    } | {
        f"linear_attention, decay {decay}, erase key {erase}": (
            family,
            lambda generator, _, d=decay, e=erase: family.random_case(generator, d, e),
        )
        for decay, erase in family.MEMBERS
    }
    generator = torch.Generator().manual_seed(options.seed)
    loaded = native_library.library()
    assert loaded is not None, "installed without a C++ compiler"
    sets = native_library.INSTRUCTION_SETS[: loaded.mixerloop_best_set() + 1]
    kinds = [(name, dtype) for name in sets for dtype in rule.TOLERANCE]
    chosen = {name: one for name, one in operators.items() if name.startswith(options.only)}
    if not chosen:
        parser.error(f"--only: no operator begins with '{options.only}'")
    for name, (tests, random_case) in chosen.items():
        worst: dict[torch.dtype, float] = {}
        for number in range(options.cases):
            instruction_set, dtype = kinds[number % len(kinds)]
            os.environ[native_library.SET_VARIABLE] = instruction_set
            native_library.reread_instruction_set()
            error = tests.largest_error(random_case(generator, dtype), dtype)
            worst[dtype] = max(worst.get(dtype, 0.0), error)
            if not error < tests.TOLERANCE[dtype]:
                raise SystemExit(
                    f"{name}, case {number}, {instruction_set}, {dtype}: error {error:.2e}"
                )
        errors = ", ".join(f"{dtype} {error:.1e}" for dtype, error in worst.items())
        print(f"{name}: largest relative error {errors}", flush=True)
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
