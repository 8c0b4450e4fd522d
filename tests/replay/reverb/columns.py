"""Decodes what was sampled to fresh arrays."""

import numpy as np

from seedrl_jax.replay.reverb.client import codec, samples


def decode_tensor(tensor: codec.Tensor) -> np.ndarray:
  """Returns a tensor's rows, `[rows, ...]`."""
  out = np.empty(tensor.shape, tensor.dtype)
  codec.decode_into(tensor, out)
  return out


def decode_column(column: samples.SampledColumn) -> np.ndarray:
  """Returns a column's rows, or its only one without the leading 1."""
  parts = [
    decode_tensor(s.tensor)[s.offset : s.offset + s.length]
    for s in column.slices
  ]
  rows = np.concatenate(parts)
  return rows[0] if column.squeeze else rows
