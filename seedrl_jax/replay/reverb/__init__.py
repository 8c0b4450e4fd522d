"""Reverb as the trajectory store: its server's process, and a client of ours.

The server runs in an environment of its own (`environment.py`, `server.py`,
`checkpoint_files.py`), as it needs a TensorFlow that cannot be had here; the
client speaks its gRPC protocol. Imports neither JAX nor TensorFlow.
"""
