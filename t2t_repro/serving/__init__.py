"""Exports of a trained run: SavedModel, LiteRT and CTranslate2; written, and read again."""
