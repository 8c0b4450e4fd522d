"""Hands parameters from the training cores to the inference cores."""

from collections.abc import Sequence

import jax

from seedrl_jax.agents import base


class ParameterPublisher:
  """Keeps the newest parameters ready on every inference device.

  The learner's thread publishes; inference threads read with a single
  reference, so neither waits for the other.
  """

  def __init__(self, devices: Sequence[jax.Device]):
    """Makes a publisher for the inference devices."""
    self._latest: dict[jax.Device, tuple[int, base.Params]] = {}
    self._devices = tuple(devices)

  def publish(self, version: int, params: base.Params) -> None:
    """Copies parameters to the inference devices and makes them the newest.

    Args:
      version: updates that made them.
      params: acting parameters on one training device, in buffers that no
        later update donates. The copy goes from device to device.
    """
    source = jax.tree.leaves(params)[0].devices()
    copies = [
      params if source == {device} else jax.device_put(params, device)
      for device in self._devices
    ]
    for device, copy in zip(self._devices, copies, strict=True):
      # Inference must not be the one to wait for the copy.
      jax.block_until_ready(copy)
      self._latest[device] = (version, copy)

  def latest(self, device: jax.Device) -> tuple[int, base.Params]:
    """Returns the newest version and its parameters on `device`."""
    return self._latest[device]
