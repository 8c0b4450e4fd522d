"""Decodes sampled columns to fresh arrays."""

import numpy as np

from seedrl_jax.replay.reverb.client import items

_NAMES = {code: name for name, code in items._CODES.items()}


def decode_columns(item: items.DrawnItem) -> list[np.ndarray]:
  outs = []
  for column in item.info.item.flat_trajectory.columns:
    first = column.chunk_slices[0]
    tensor = item.chunks[first.chunk_key].data.tensors[first.index]
    shape = [dim.size for dim in tensor.tensor_shape.dim][1:]
    if not column.squeeze:
      shape.insert(0, sum(s.length for s in column.chunk_slices))
    outs.append(np.empty(shape, _NAMES[tensor.dtype]))
  for task in item.decode(outs):
    items.decode_into(*task)
  return outs
