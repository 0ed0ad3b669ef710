"""Generated data: the problems `toy_ende` and `toy_parsing`, which need no download."""
