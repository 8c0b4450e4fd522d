"""Work directories of runs that never ran."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from seedrl_jax.configs import vtrace_catch
from seedrl_jax.runtime import workdir as workdir_lib
from tests import runs

TOTAL = 1000


def write(
  folder: pathlib.Path,
  returns: Sequence[float],
  status: str = 'finished',
  **values: Any,
) -> pathlib.Path:
  """Writes a run of these training returns; `values` as for `runs.set_keys`.

  Evaluation returns are 1 higher. The run has `TOTAL` frames, by default all.
  """
  workdir = workdir_lib.Workdir(folder)
  config = vtrace_catch.get_config()
  runs.set_keys(config, **{'total_env_frames': TOTAL} | values)
  workdir.path.mkdir(parents=True, exist_ok=True)
  workdir.write_config(config)
  step = TOTAL // len(returns)
  lines = [
    'time/updates,time/env_frames,time/elapsed_s,rollout/return,eval/return'
  ]
  for i, value in enumerate(returns, 1):
    lines.append(f'{i},{i * step},{60 * i},{value},{value + 1}')
  workdir.metrics_csv.write_text('\n'.join(lines) + '\n')
  summary = {
    'status': status,
    'env_frames': TOTAL,
    'mean_return_100': returns[-1],
    'eval_mean_return': returns[-1] + 1,
  }
  if status:
    workdir.summary_json.write_text(json.dumps(summary))
  return folder
