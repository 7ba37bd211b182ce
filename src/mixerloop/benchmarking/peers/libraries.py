"""Where `benchmarks/fetch_peers.py` puts the compiled libraries of peers, and which are there."""

import json
import sys
from pathlib import Path

FOLDER = Path(sys.prefix) / "peers"
STAMP = "archive.json"


def libraries(peer: str) -> dict[str, Path]:
    """The shared libraries of a peer by file name; empty where they were not fetched."""
    return {path.name: path for path in sorted((FOLDER / peer).glob("*.so"))}


def archive(peer: str) -> str:
    """The name and version of the archive that a peer's libraries are from."""
    return json.loads((FOLDER / peer / STAMP).read_text())["name"]
