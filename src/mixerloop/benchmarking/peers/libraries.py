"""Where `benchmarks/fetch_peers.py` puts the compiled libraries of peers, and which are there."""

import sys
from pathlib import Path

FOLDER = Path(sys.prefix) / "peers"


def libraries(peer: str) -> dict[str, Path]:
    """The shared libraries of a peer by file name; empty where they were not fetched."""
    return {path.name: path for path in sorted((FOLDER / peer).glob("*.so"))}
