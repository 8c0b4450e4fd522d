"""Decodes sampled columns to fresh arrays."""

import numpy as np

from seedrl_jax.replay.reverb.client import codec, items


def decode_tensor(tensor: codec.Tensor) -> np.ndarray:
  out = np.empty(tensor.shape, tensor.dtype)
  codec.decode_into(tensor, out)
  return out


def decode_column(column: items.SampledColumn) -> np.ndarray:
  parts = [
    decode_tensor(s.tensor)[s.offset : s.offset + s.length]
    for s in column.slices
  ]
  rows = np.concatenate(parts)
  return rows[0] if column.squeeze else rows
