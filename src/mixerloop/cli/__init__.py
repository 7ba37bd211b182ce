"""The `mixerloop` command: one module per verb; torch is loaded only when a verb runs."""
