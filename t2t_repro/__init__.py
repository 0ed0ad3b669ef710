"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017) in TensorFlow and Keras."""

__version__ = "0.1.0.dev0"
