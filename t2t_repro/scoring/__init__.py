"""Scores of outputs: BLEU for translation, EVALB's F1 for parsing."""
