"""Tables of the programs of a run on a target."""

from collections.abc import Iterable, Iterator

from seedrl_jax.lab import tables
from seedrl_jax.lab.planning import bounds, targets
from seedrl_jax.lab.planning import programs as programs_lib
from seedrl_jax.run import plan as plan_lib

# Bytes in a table's unit.
_MEGA, _GIGA = 1e6, 1e9


def program_row(
  compiled: programs_lib.Compiled, device: targets.Device
) -> tables.Row:
  """Returns the table row of a program, of one call on one device."""
  traffic, donated = compiled.traffic, '-'
  if compiled.donated is not None:
    taken, meant = compiled.donated
    donated = 'yes' if taken >= meant else f'{taken / meant:.0%}'
  bound = bounds.bound(compiled, device)
  times = f' ({compiled.calls} x)' if compiled.calls > 1 else ''
  return {
    'program': compiled.name + times,
    'GFLOP': f'{compiled.flops / _GIGA:,.2f}',
    'MB moved': f'{traffic.size / _MEGA:,.1f}',
    'operations': f'{traffic.operations:,}',
    'temporary MB': f'{compiled.temporary / _MEGA:,.1f}',
    'of memory': f'{compiled.memory / device.memory:.0%}',
    'donated': donated,
    'at least': f'{bound.seconds * 1e6:,.1f} µs by {bound.reason}',
  }


def split_row(split: bounds.Split, action_repeat: int) -> tables.Row:
  """Returns the table row of a split."""
  return {
    'inference:training': split.label,
    'updates/s': f'{split.updates:,.0f}',
    'learning frames/s': f'{split.learning * action_repeat:,.0f}',
    'inference frames/s': f'{split.acting * action_repeat:,.0f}',
    'bound by': split.limit,
    'env steps/s to supply': f'{split.steps:,.0f}',
  }


def print_all(
  agent: str,
  target: targets.Target,
  plan: plan_lib.Plan,
  compiled: Iterable[programs_lib.Compiled],
) -> None:
  """Prints each program as soon as it is compiled, then the run's ceilings."""
  device, env_spec = target.device, plan.env_spec
  print(
    f'\n{agent} in {env_spec.env_id} on {target}: '
    f'{plan.topology.describe()}. Each has {device.flops / 1e12:,.0f} '
    f'TFLOP/s in bfloat16 and {device.flops32 / 1e12:g} in float32 at '
    f"JAX's default precision, {device.bandwidth / _GIGA:,.0f} GB/s and "
    f'{device.memory / _GIGA:,.0f} GB; an operation is estimated to take '
    f'{device.operation_seconds * 1e6:.1f} µs. The initial state is made on '
    'the host.'
  )
  done: list[programs_lib.Compiled] = []

  def rows() -> Iterator[tables.Row]:
    for c in compiled:
      done.append(c)
      yield program_row(c, device)

  tables.show(rows())
  splits = bounds.splits(plan, done, device)
  tables.show(split_row(x, env_spec.action_repeat) for x in splits)
  if not all(x.exact for x in splits):
    print('* scaled from the compiled split')
  print(
    'These are bounds from published peaks and an estimated time for each '
    'operation, not measurements: a run is slower.',
    flush=True,
  )
