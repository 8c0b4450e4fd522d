"""The system's torsos in PyTorch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


class Torso(nn.Module):
  """Maps observations `[..., *shape]` to features `[..., size]`."""

  def __init__(self, network: dict[str, Any], shape: Sequence[int]):
    super().__init__()
    self._rank = len(shape)
    self.size = network['hidden_sizes'][-1]
    layers, width = _convolutions(network['convolutions'], shape)
    for hidden in network['hidden_sizes']:
      layers += [nn.Linear(width, hidden), nn.ReLU()]
      width = hidden
    self._layers = nn.Sequential(*layers)

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    batch = x.shape[: x.ndim - self._rank]
    if x.dtype == torch.uint8:
      x = x.float() / 255.0
    return self._layers(x.flatten(0, len(batch) - 1)).unflatten(0, batch)


def _convolutions(
  layers: Sequence[Sequence[int]], shape: Sequence[int]
) -> tuple[list[nn.Module], int]:
  """Returns the layers and the size of their output."""
  if not layers:
    return [], shape[-1]
  modules: list[nn.Module] = []
  channels, height, width = shape
  for filters, kernel, stride in layers:
    modules += [nn.Conv2d(channels, filters, kernel, stride), nn.ReLU()]
    height, width = ((n - kernel) // stride + 1 for n in (height, width))
    channels = filters
  return [*modules, nn.Flatten()], channels * height * width
