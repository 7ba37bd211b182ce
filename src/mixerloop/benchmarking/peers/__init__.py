"""Other packages' implementations of the gated delta rule on a CPU, one module each."""
