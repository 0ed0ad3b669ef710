"""Section 5: loss, schedule, optimizer, and the loop around the training step."""
