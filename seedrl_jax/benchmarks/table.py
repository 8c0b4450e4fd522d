"""Runs a case and writes its figures as rows."""

from typing import Any

from seedrl_jax.benchmarks import ceilings, timing, whole
from seedrl_jax.run import build


def measure(
  name: str,
  config: Any,
  streams: build.MakeStream | None,
  system: bool,
  windows: int,
  seconds: float,
  system_seconds: float,
  warm_up: float,
) -> dict[str, Any]:
  """Returns a case's figures, ready for JSON.

  Args:
    name: of the case.
    config: its configuration.
    streams: see `builder.build`.
    system: whether to run the whole beside the stages.
    windows: of which medians are taken.
    seconds: length of a stage's window.
    system_seconds: length of a window of the whole.
    warm_up: seconds that the whole runs before the first window.
  """
  # The stages are timed before and after the whole, so that a machine whose
  # speed drifts does not pass for a share of the ideal.
  before = ceilings.measure(config, streams, windows, seconds)
  row = {
    'case': name,
    'backend': config.replay.backend,
    'ceilings': _ceilings(before),
  }
  if not system:
    return row
  ran = whole.measure(config, streams, windows, system_seconds, warm_up)
  after = ceilings.measure(config, streams, windows, seconds)
  ideal = (before.ideal(ran.topology) + after.ideal(ran.topology)) / 2
  row['system'] = {
    **ran.steps._asdict(),
    'trained_share': ran.trained_share,
    'ideal': ideal,
    'share_of_ideal': ran.steps.median / ideal,
    'share_of_env': ran.steps.median
    / ((before.env.median + after.env.median) / 2),
    'waits': ran.waits,
  }
  return row


def _ceilings(measured: ceilings.Ceilings) -> dict[str, Any]:
  return {
    'env': measured.env._asdict(),
    'inference': {n: t._asdict() for n, t in measured.inference.items()},
    'batch_size': measured.batch_size,
    'update': measured.update._asdict(),
    'store': measured.store._asdict(),
  }


def lines(row: dict[str, Any]) -> list[str]:
  """Returns a case's figures as lines of text."""
  stages = row['ceilings']
  out = [
    f'\n{row["case"]} ({row["backend"]} store): steps/s alone, median '
    '(min–max), host µs per step',
    _line('environments', stages['env']),
  ]
  for size, figures in stages['inference'].items():
    mark = ' *' if size == stages['batch_size'] else ''
    out.append(_line(f'inference, batch {size}{mark}', figures))
  out.append(_line('update', stages['update']))
  out.append(_line('store', stages['store']))
  if 'system' in row:
    whole_row = row['system']
    out.append(_line('whole system', whole_row))
    out.append(
      f'  = {whole_row["share_of_ideal"]:.2f} of the ideal '
      f'{whole_row["ideal"]:,.0f}, {whole_row["share_of_env"]:.2f} of the '
      f'environments alone; trained on {whole_row["trained_share"]:.2f} of '
      f'the steps\n  {whole_row["waits"]}'
    )
  return out


def _line(name: str, figures: dict[str, Any]) -> str:
  text = timing.Timing(
    *(figures[field] for field in timing.Timing._fields)
  ).text()
  return f'  {name:<24} {text:>40} {figures["cpu_seconds"] * 1e6:>10.3f}'


def summary(rows: list[dict[str, Any]]) -> list[str]:
  """Returns one line for each case: the whole against its ideal."""
  out = [
    '\n| case | store | steps/s | spread | ideal | share | share of envs |',
    '|---|---|---|---|---|---|---|',
  ]
  for row in rows:
    ran = row['system']
    out.append(
      f'| {row["case"]} | {row["backend"]} | {ran["median"]:,.0f} | '
      f'{ran["minimum"]:,.0f}–{ran["maximum"]:,.0f} | {ran["ideal"]:,.0f} | '
      f'{ran["share_of_ideal"]:.2f} | {ran["share_of_env"]:.2f} |'
    )
  return out
