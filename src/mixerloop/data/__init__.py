"""Prepared data: sources, tokenizers, shards, windows, batches and synthetic tasks."""
