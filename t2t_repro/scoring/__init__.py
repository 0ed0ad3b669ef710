"""Scores of model outputs: BLEU for translations, EVALB's F1 for parses."""
