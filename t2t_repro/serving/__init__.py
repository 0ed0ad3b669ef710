"""Exports of a trained run: for TensorFlow Serving and for CTranslate2."""
