"""How long a test waits for what must happen."""

from __future__ import annotations

import os
from typing import Final

PATIENCE: Final = float(os.environ.get("PG_SCHEDULER_PATIENCE", "10"))
"""Seconds after which a test stops waiting. Nothing here takes as long, so a broken promise turns it
red soon. `dev.py` gives more to tests that run at once."""

PROMPT: Final = 10.0
"""Seconds within which a busy machine handles a notification or a timer; heartbeats are 20 seconds apart."""
