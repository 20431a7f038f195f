"""Runs a driver inside its own virtual environment: ``python -P benchmarks/launch.py MODULE ORDER``.

The checkout goes to the end of the search path, so that an environment that holds pg-scheduler 0.2.3 gets
that one and not the checkout's.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    importlib.import_module(sys.argv[1]).main(sys.argv[2])
