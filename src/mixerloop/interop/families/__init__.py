"""Families of pretrained models, by the `model_type` in their config.json; one file each."""

from mixerloop.interop.families.family import Family
from mixerloop.interop.families.huginn import HUGINN
from mixerloop.interop.families.llama import LLAMA_LIKE
from mixerloop.interop.families.ouro import OURO

FAMILIES: dict[str, Family] = {family.model_type: family for family in (*LLAMA_LIKE, OURO, HUGINN)}
