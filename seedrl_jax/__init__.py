"""SEED RL for JAX: central inference, V-trace and R2D2 on accelerators."""

__version__ = '0.1.0'
