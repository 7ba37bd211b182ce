"""mixerloop: which part of a language model should loop, how often, and did it pay?"""

__version__ = "0.1.0"
