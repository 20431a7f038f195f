"""Run a driver inside its virtual environment: ``python -P benchmarks/launch.py MODULE ORDER``.

The checkout is appended to the search path, so that an environment with pg-scheduler 0.2.3 imports that
version.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    importlib.import_module(sys.argv[1]).main(sys.argv[2])
