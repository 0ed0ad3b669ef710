"""Exports of a run (SavedModel, Keras preset, LiteRT, CTranslate2): written, and read again."""
