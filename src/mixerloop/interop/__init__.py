"""Models in other formats: Hugging Face folders, the released checkpoints, lm-eval."""
