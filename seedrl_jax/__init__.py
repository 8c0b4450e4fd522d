"""SEED RL for JAX: central inference and V-trace on accelerators."""

__version__ = '0.1.0'
