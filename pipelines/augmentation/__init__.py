"""Data augmentation: the training split is altered anew in each epoch. Not in the paper."""
