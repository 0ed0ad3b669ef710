"""Benchmarks: `python -m t2t_repro.bench` measures speed and reproduces Tables 1 and 3."""
