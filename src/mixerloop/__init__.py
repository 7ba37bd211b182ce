"""mixerloop: which part of a language model should loop, how often, and did it pay?"""

from mixerloop.machine import settle

__all__ = ["__version__", "settle"]
__version__ = "0.1.0"
