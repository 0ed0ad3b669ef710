"""Paths of the checkout and of the real text beside it, which is not part of the repository."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
