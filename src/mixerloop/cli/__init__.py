"""The `mixerloop` command: one module per verb, and no torch until one runs."""
