"""Where the checkout is, and the real text beside it that no commit holds."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
