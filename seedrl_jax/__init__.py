"""SEED RL for JAX: central inference and V-trace on accelerators."""

import os

__version__ = '0.1.0'

# Before NumPy and SciPy are imported: no threads of OpenBLAS's. It ends them
# before each fork and waits for them, which hangs if two threads fork at once,
# as EnvPool's do to start ViZDoom. Nothing here multiplies large matrices in
# NumPy.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
