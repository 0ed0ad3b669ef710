"""Section 6.1: beam search, and translation from text to text; sampling, scores and alignments."""
