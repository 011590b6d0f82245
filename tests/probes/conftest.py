"""The probe's modules are no package of ours: they are found by path, as the target's interpreter finds them."""

from __future__ import annotations

import sys
from pathlib import Path

PROBES = Path(__file__).resolve().parents[2] / "probes"
if str(PROBES) not in sys.path:
    sys.path.insert(0, str(PROBES))
