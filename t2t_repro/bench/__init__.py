"""Measurements of speed, and Tables 1 and 3 anew: `python -m t2t_repro.bench`."""
