"""The system's torsos in PyTorch."""

from collections.abc import Sequence
from typing import Any

from torch import nn


def make(
  network: dict[str, Any], shape: Sequence[int]
) -> tuple[nn.Module, int]:
  """Returns layers from `[batch, *shape]` to `[batch, size]`, and the size."""
  layers, width = _convolutions(network['convolutions'], shape)
  for hidden in network['hidden_sizes']:
    layers += [nn.Linear(width, hidden), nn.ReLU()]
    width = hidden
  return nn.Sequential(*layers), width


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
