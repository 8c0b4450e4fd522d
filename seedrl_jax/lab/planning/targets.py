"""Accelerators to compile for, none of which needs to be at hand."""

import importlib.util
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies


class Device(NamedTuple):
  """Published figures of one device, as JAX counts devices.

  Attributes:
    flops: of bfloat16 products, dense, per second.
    bandwidth: of its memory, in bytes per second.
    memory: bytes.
    gpu: of a GPU, its compute capability and number of multiprocessors.
  """

  flops: float
  bandwidth: float
  memory: float
  gpu: tuple[int, int, int] | None = None

  @property
  def flops32(self) -> float:
    """Of float32 products, per second, as JAX computes them by default.

    That is in TF32 on these GPUs, and in one pass of bfloat16 on a TPU.
    """
    return self.flops / 2 if self.gpu else self.flops

  @property
  def operation_seconds(self) -> float:
    """Estimated mean time of an operation that does next to nothing.

    For a GPU, what XLA's cost model takes for the launch of a kernel. For a
    TPU, the mean of XLA's own estimates in CartPole's update on a v5e.
    """
    return 1e-6 if self.gpu else 0.3e-6


# Google Cloud's pages on each TPU version, and NVIDIA's data sheets of the SXM
# modules.
DEVICES = {
  'v4': Device(275e12, 1228e9, 32e9),
  'v5e': Device(197e12, 819e9, 16e9),
  'v5p': Device(459e12, 2765e9, 95e9),
  'v6e': Device(918e12, 1640e9, 32e9),
  'a100': Device(312e12, 2039e9, 80e9, gpu=(8, 0, 108)),
  'h100': Device(989e12, 3350e9, 80e9, gpu=(9, 0, 132)),
  'h200': Device(989e12, 4800e9, 141e9, gpu=(9, 0, 132)),
}

# By extras that install them.
_GPU_COMPILERS = {'cuda12': 'jax_cuda12_plugin', 'cuda13': 'jax_cuda13_plugin'}
_TPU_COMPILERS = {'tpu': 'libtpu'}
# The two cores of a chip are one device, as on a TPU VM.
_CHIP_CONFIGS = {'v4': 'megacore'}

# libtpu looks for a TPU host's metadata and for other users of its chips,
# unless these variables forbid it.
_TPU_ENVIRONMENT = {
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'TPU_ACCELERATOR_TYPE': 'v5litepod-4',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
  'TPU_MIN_LOG_LEVEL': '3',
}


class Target(NamedTuple):
  """Devices of one host, as `v5e:2x4`.

  Attributes:
    shape: of the grid of chips; of GPUs their number.
  """

  kind: str
  shape: tuple[int, ...]

  @property
  def device(self) -> Device:
    """The figures of one of its devices."""
    return DEVICES[self.kind]

  def __str__(self) -> str:
    return f'{self.kind}:{"x".join(map(str, self.shape))}'


def parse(text: str) -> Target:
  """Reads `v5e:2x4`, `h200` or `h200:8`; raises ValueError if it is neither."""
  kind, _, shape = text.partition(':')
  if kind not in DEVICES:
    raise ValueError(
      f'--target={text}: there is no such device; take one of '
      f'{", ".join(DEVICES)}.'
    )
  is_gpu = DEVICES[kind].gpu is not None
  example = '8' if is_gpu else '2x2x1' if kind in ('v4', 'v5p') else '2x2'
  sizes = (shape or '1').split('x') if is_gpu else shape.split('x')
  is_whole = all(re.fullmatch(r'[1-9]\d*', size) for size in sizes)
  if not is_whole or len(sizes) != len(example.split('x')):
    wanted = 'number of GPUs' if is_gpu else 'shape of the grid of chips'
    raise ValueError(
      f'--target={text}: {wanted} not understood; write it as {kind}:{example}.'
    )
  return Target(kind, tuple(map(int, sizes)))


def configure(wanted: Sequence[Target]) -> None:
  """Prepares the process to compile for targets, before JAX has backends.

  Only the CPU is opened: a run that uses this machine's accelerators is not
  disturbed.

  Raises:
    ValueError: if a compiler is not installed; says how to install it.
  """
  for target in wanted:
    compilers = _GPU_COMPILERS if target.device.gpu else _TPU_COMPILERS
    if not any(map(importlib.util.find_spec, compilers.values())):
      commands = (f"pip install -e '.[{extra}]'" for extra in compilers)
      raise ValueError(
        f'--target={target}: its compiler, {" or ".join(compilers.values())}, '
        f'is missing; install it with {" or ".join(commands)}.'
      )
  for name, value in _TPU_ENVIRONMENT.items():
    os.environ.setdefault(name, value)
  os.environ['JAX_SKIP_CUDA_CONSTRAINTS_CHECK'] = '1'
  jax.config.update('jax_platforms', 'cpu')


def devices(target: Target) -> list[Any]:
  """Returns the devices of a target, to compile for; they cannot run."""
  if target.device.gpu is not None:
    topology = topologies.get_topology_desc(
      topology_name=target.kind,
      platform='cuda',
      topology=f'1x1x{target.shape[0]}',
      target_config=_gpu_config(target.device),
    )
  else:
    # All on one host, whatever number of chips real hosts have.
    bounds = (*target.shape, 1)[:3]
    topology = topologies.get_topology_desc(
      platform='tpu',
      topology_name=str(target),
      chips_per_host_bounds=bounds,
      chip_config_name=_CHIP_CONFIGS.get(target.kind, 'default'),
    )
  return list(topology.devices)


def _gpu_config(device: Device) -> str:
  """Returns XLA's description of a GPU, `GpuTargetConfigProto` as text."""
  assert device.gpu is not None
  major, minor, processors = device.gpu
  return f"""
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {232448 if major == 9 else 166912}
  shared_memory_per_core: {233472 if major == 9 else 167936}
  threads_per_core_limit: 2048
  core_count: {processors}
  fpus_per_core: {128 if major == 9 else 64}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {device.bandwidth:.0f}
  l2_cache_size: {52428800 if major == 9 else 41943040}
  clock_rate_ghz: {1.98 if major == 9 else 1.41}
  device_memory_size: {device.memory:.0f}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
runtime_version {{ major: 12 minor: 8 }}
device_description_str: "NVIDIA"
"""
