"""The server of `python -m t2t_repro.serve`: requests, queue, engines and page."""
