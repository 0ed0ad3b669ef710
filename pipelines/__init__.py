"""From text to batches of ids; independent of the model: imports neither t2t_repro nor keras."""
