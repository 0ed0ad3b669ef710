"""Training text that is altered in each epoch; not in the paper."""
