"""Models as others keep them: Hugging Face folders, the released checkpoints, lm-eval."""
