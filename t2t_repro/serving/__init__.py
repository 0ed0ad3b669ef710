"""Exports of a trained run to TensorFlow Serving and to CTranslate2."""
