"""Sections 3.1 to 3.5, and the other layers of Table 1. Keras and NumPy; JAX for one kernel."""
