"""The trajectory store: tables of unrolls between inference and learner.

`base.py` is the contract, `embedded/` and `reverb/` are the backends. Imports
neither JAX nor TensorFlow.
"""
