"""The split of devices into inference and training cores."""

import dataclasses
import math
import re
from collections.abc import Sequence

import jax


@dataclasses.dataclass(frozen=True)
class Topology:
  """The split of this host's devices; a single device is in both parts."""

  inference: tuple[jax.Device, ...]
  training: tuple[jax.Device, ...]

  @property
  def shared(self) -> bool:
    """Whether one device both acts and trains."""
    return self.inference == self.training

  def describe(self) -> str:
    """Returns a short description for the start-up line."""
    kind = self.training[0].device_kind
    if self.shared:
      return f'1 {kind} device for inference and training'
    return (
      f'{len(self.inference)} {kind} devices for inference, '
      f'{len(self.training)} for training'
    )


def default_ratio(num_devices: int, unrolls: int) -> str:
  """Returns 1:3 if the devices and a batch of `unrolls` divide so, else 1:1."""
  training, rest = divmod(3 * num_devices, 4)
  return '1:1' if rest or unrolls % training else '1:3'


def make_topology(
  ratio: str, devices: list[jax.Device], max_devices: int = 0
) -> Topology:
  """Splits this host's devices into inference and training cores.

  Args:
    ratio: inference : training, as `1:3`. A single device does both if the
      ratio is even.
    max_devices: maximum number to use; 0 means all.

  Raises ValueError if the ratio is malformed or does not fit the devices.
  """
  if max_devices > len(devices):
    raise ValueError(
      f'--config.topology.max_devices={max_devices}: this host has '
      f'{len(devices)}; 0 takes all.'
    )
  if max_devices:
    devices = devices[:max_devices]
  n = len(devices)
  inference, training = _parse(ratio)
  parts = inference + training
  if n == 1 and parts == 2:
    return Topology(tuple(devices), tuple(devices))
  if n % parts:
    raise ValueError(
      f'--config.topology.inference_to_training={inference}:{training} does '
      f'not divide the {n} device{"s" * (n > 1)} of this host; omit it, or set '
      f'--config.topology.max_devices to a multiple of {parts}.'
    )
  count = n // parts * inference
  return Topology(tuple(devices[:count]), tuple(devices[count:]))


def all_training(
  ratio: str, devices: Sequence[jax.Device], max_devices: int = 0
) -> tuple[jax.Device, ...]:
  """Returns the training cores of all hosts, host by host.

  Raises what `make_topology` does.
  """
  training: list[jax.Device] = []
  for host in sorted({d.process_index for d in devices}):
    group = [d for d in devices if d.process_index == host]
    training += make_topology(ratio, group, max_devices).training
  return tuple(training)


def _parse(ratio: str) -> tuple[int, int]:
  match = re.fullmatch(r'(\d+):(\d+)', ratio.strip())
  inference, training = map(int, match.groups()) if match else (0, 0)
  if not inference or not training:
    raise ValueError(
      f'--config.topology.inference_to_training={ratio} is not a ratio of two '
      'positive numbers; write it as 1:3.'
    )
  divisor = math.gcd(inference, training)
  return inference // divisor, training // divisor
