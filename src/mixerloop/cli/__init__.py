"""The `mixerloop` command: one module per verb. Torch is loaded by a verb that runs, not by help."""
