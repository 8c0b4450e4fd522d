"""Compiles a run's acting and learning for devices that are not at hand."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.inference import device_step, specs
from seedrl_jax.lab.planning import flops as flops_lib
from seedrl_jax.lab.planning import hlo
from seedrl_jax.learner import update
from seedrl_jax.run import layout
from seedrl_jax.run import plan as plan_lib

# Prefixes of the names of programs.
ACT, UPDATE, PUBLISH = 'act', 'update', 'publish'


class Compiled(NamedTuple):
  """What a compiled program needs of one device.

  Attributes:
    calls: in an update.
    flops: floating-point operations of its products.
    flops32: those of products of float32.
    traffic: to and from the device's memory.
    memory: bytes while it runs, with its arguments and its code.
    temporary: bytes of `memory` for intermediate results.
    donated: bytes that the results take over from arguments, and that they
      should; None if none are meant to.
  """

  name: str
  calls: int
  flops: int
  flops32: int
  traffic: hlo.Traffic
  memory: int
  temporary: int
  donated: tuple[int, int] | None


class Program(NamedTuple):
  """A jitted function of a run, and what it is called with.

  Attributes:
    function: made by `jax.jit` or `jax.pmap`.
    shapes: `ShapeDtypeStruct`s of its arguments.
    donated: index of the argument whose memory the results take; None: none.
    calls: in an update.
  """

  name: str
  function: Any
  shapes: tuple[Any, ...]
  donated: int | None = None
  calls: int = 1


def list_programs(plan: plan_lib.Plan) -> Iterator[Program]:
  """Yields the programs of a run on the devices of `plan`.

  The initial state is not among them, as the host's CPU computes it.
  """
  agent = plan.agent
  step: Any = jax.ShapeDtypeStruct((), jnp.int32)
  key: Any = jax.ShapeDtypeStruct((2,), jnp.uint32)
  state = update.LearnerState(agent.state_shapes(), step, key)
  unroll = plan.unroll_spec
  batch = specs.blank_batch(unroll, plan.batch_width)
  count = len(plan.updater.devices)
  yield from _update_programs(
    plan, _leading(count, state), _leading(count, batch)
  )
  device = plan.topology.inference[0]
  if plan.device_env is not None:
    yield _unroll_program(plan, device)
  if plan.device_env is None or plan.config.actors.max_envs:
    yield from _inference_programs(plan, device)
  if agent.initial_priorities is not None:
    block = specs.blank_batch(unroll, plan.block_width).unroll.steps
    steps = _on(device, block._replace(observation=()))
    yield Program(
      'initial priorities', jax.jit(agent.initial_priorities), (steps,)
    )


def _update_programs(
  plan: plan_lib.Plan, state: Any, batch: Any
) -> Iterator[Program]:
  """Yields what an update calls; shapes have the leading `[D]`."""
  steps = update.on_all(plan.agent, plan.updater.devices)
  progress: Any = jax.ShapeDtypeStruct((), jnp.float32)
  if not isinstance(steps, agents.UpdateInPieces):
    yield Program(UPDATE, steps, (state, batch, progress), 0)
    return
  total, pieces = jax.eval_shape(steps.cut, state, batch)
  _, result = jax.eval_shape(steps.accumulate, total, state, pieces[0])
  yield Program(f'{UPDATE}: cut', steps.cut, (state, batch))
  yield Program(
    f'{UPDATE}: accumulate',
    steps.accumulate,
    (total, state, pieces[0]),
    0,
    len(pieces),
  )
  results = [result] * len(pieces)
  yield Program(
    f'{UPDATE}: finish', steps.finish, (state, total, results, progress), 0
  )


def _inference_programs(
  plan: plan_lib.Plan, device: jax.Device
) -> Iterator[Program]:
  agent, spec = plan.agent, plan.env_spec.stream
  header = specs.Packing(specs.header_spec(spec.action))
  output = specs.output_spec(agent, spec, agent.params_shapes())
  programs = device_step.make_programs(
    agent, header, specs.Packing(output), device.platform
  )
  shares = [share for share in plan.shares if share.device == device]
  rows = max(len(share.global_env_id) for share in shares) + 1
  core = functools.partial(_shapes_of, agent.initial_core, device)
  table = core(rows)
  has_core = bool(jax.tree.leaves(table))
  sizes = _batch_sizes(shares)
  for size in sizes:
    shapes = (
      _on(device, agent.params_shapes()),
      table,
      _array(device, (2,), jnp.uint32),
      jax.tree.map(
        lambda s, size=size: _array(device, (size, *s.shape), s.dtype),
        spec.observation,
        is_leaf=types.is_spec,
      ),
      _array(device, (size, header.width), jnp.int32),
    )
    yield Program(
      f'{ACT} {size}', programs.act, shapes, 1 if has_core else None
    )
  if has_core:
    rows_taken = (core(sizes[-1]), _array(device, (sizes[-1],), jnp.int32))
    yield Program(f'take core {sizes[-1]}', programs.take, rows_taken)
  if has_core and plan.config.learner.max_lag is not None:
    head = _array(device, (sizes[-1], header.width), jnp.int32)
    restored = (table, head, core(sizes[-1]))
    yield Program(f'restore {sizes[-1]}', programs.restore, restored, 0)


def _unroll_program(plan: plan_lib.Plan, device: jax.Device) -> Program:
  """Returns what acts in environments in JAX, named by its steps."""
  share = next(x for x in plan.shares if x.device == device and not x.is_remote)
  program = plan.unroll_program(share)
  key = jax.ShapeDtypeStruct((2,), jnp.uint32)
  shapes = (
    plan.agent.params_shapes(),
    jax.ShapeDtypeStruct((), jnp.int32),
    key,
    jax.eval_shape(program.init, key),
  )
  steps = len(share.global_env_id) * plan.config.unroll_length
  return Program(
    f'{ACT} and step {steps}',
    jax.jit(program, donate_argnums=3),
    _on(device, shapes),
    3,
  )


def _batch_sizes(shares: Sequence[layout.StreamShare]) -> tuple[int, ...]:
  """Returns the batch sizes that streams compile, of all devices alike."""
  largest = max(share.batch_size for share in shares)
  # Local environments come in batches of one size.
  varies = any(share.is_remote for share in shares)
  return device_step.batch_buckets(1 if varies else largest, largest)


def _leading(count: int, tree: Any) -> Any:
  """Returns shapes with a leading axis of `count` devices."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      (count, *x.shape), jax.dtypes.canonicalize_dtype(x.dtype)
    ),
    tree,
  )


def _array(
  device: jax.Device, shape: tuple[int, ...], dtype: Any
) -> jax.ShapeDtypeStruct:
  """Returns the shape of an array on `device`."""
  dtype = jax.dtypes.canonicalize_dtype(dtype)
  sharding = jax.sharding.SingleDeviceSharding(device)
  return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _on(device: jax.Device, tree: Any) -> Any:
  return jax.tree.map(lambda x: _array(device, x.shape, x.dtype), tree)


def _shapes_of(make: Callable[[int], Any], device: jax.Device, n: int) -> Any:
  return _on(device, jax.eval_shape(lambda: make(n)))


def compile_program(
  program: Program, num_devices: int, platform: str
) -> Compiled:
  """Compiles one program; `num_devices` is that of its leading axes."""
  compiled = program.function.lower(*program.shapes).compile()
  memory = compiled.memory_analysis()
  jaxpr = _jaxpr(program.function, program.shapes)
  donated = None
  if program.donated is not None:
    meant = _bytes(program.shapes[program.donated]) // num_devices
    donated = (int(memory.alias_size_in_bytes), meant)
  return Compiled(
    name=program.name,
    calls=program.calls,
    flops=flops_lib.flops(jaxpr, platform),
    flops32=flops_lib.flops(jaxpr, platform, least_bytes=4),
    traffic=hlo.traffic(compiled.as_text()),
    memory=memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes
    + memory.temp_size_in_bytes
    + memory.generated_code_size_in_bytes,
    temporary=memory.temp_size_in_bytes,
    donated=donated,
  )


def _jaxpr(function: Any, shapes: tuple[Any, ...]) -> core.Jaxpr:
  # `make_jaxpr` refuses a jitted function with compiler options; a pmapped one
  # has no `trace`.
  if hasattr(function, 'trace'):
    return function.trace(*shapes).jaxpr.jaxpr
  return jax.make_jaxpr(function)(*shapes).jaxpr


def compile_all(plan: plan_lib.Plan) -> Iterator[Compiled]:
  """Compiles the programs of a run one after the other, publishing last."""
  count = len(plan.updater.devices)
  platform = plan.updater.devices[0].platform
  for program in list_programs(plan):
    is_update = program.name.startswith(UPDATE)
    yield compile_program(program, count if is_update else 1, platform)
  yield _publishing(plan)


def _publishing(plan: plan_lib.Plan) -> Compiled:
  """Returns the copy of acting parameters to an inference device.

  It is no program: the bytes are read once and written once.
  """
  size = _bytes(plan.agent.params_shapes())
  traffic = hlo.Traffic(2 * size, 1)
  return Compiled(PUBLISH, 1, 0, 0, traffic, size, 0, None)


def _bytes(tree: Any) -> int:
  return sum(
    math.prod(x.shape) * jnp.dtype(x.dtype).itemsize
    for x in jax.tree.leaves(tree)
  )
