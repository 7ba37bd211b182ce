"""Random small cases of the native kernel against the definition in float64.

python benchmarks/fuzz_native.py                 # 10,000 cases over all instruction sets
python benchmarks/fuzz_native.py --cases 500
"""

import argparse
import importlib.util
import os
from pathlib import Path

import torch

from mixerloop.ops import native_library

TESTS = Path(__file__).parents[1] / "tests" / "parity" / "test_native.py"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    spec = importlib.util.spec_from_file_location("test_native", TESTS)
    assert spec is not None
    assert spec.loader is not None
    tests = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tests)
    generator = torch.Generator().manual_seed(options.seed)
    worst = dict.fromkeys(tests.TOLERANCE, 0.0)
    kinds = [(name, dtype) for name in tests.sets_here() for dtype in tests.TOLERANCE]
    for number in range(options.cases):
        instruction_set, dtype = kinds[number % len(kinds)]
        os.environ[native_library.SET_VARIABLE] = instruction_set
        error = tests.largest_error(tests.random_case(generator, dtype), dtype)
        worst[dtype] = max(worst[dtype], error)
        if not error < tests.TOLERANCE[dtype]:
            raise SystemExit(f"case {number}, {instruction_set}, {dtype}: error {error:.2e}")
    for dtype, error in worst.items():
        print(f"{dtype}: largest relative error {error:.1e}")
    print(f"{options.cases:,} cases on {', '.join(tests.sets_here())}: all within tolerance")


if __name__ == "__main__":
    main()
