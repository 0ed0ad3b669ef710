"""Text to batches of ids. Knows nothing of the model: imports neither t2t_repro nor keras."""
