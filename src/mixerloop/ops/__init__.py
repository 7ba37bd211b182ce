"""The operators a mixer is built on, each with a plain definition beside its fast forms."""
