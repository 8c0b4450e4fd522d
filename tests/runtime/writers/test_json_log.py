"""Tests for seedrl_jax/runtime/writers/json_log.py."""

import json
import math

import numpy as np

from seedrl_jax.runtime.writers import json_log
from tests.runtime.writers import rows


def test_a_line_is_one_report(tmp_path):
  log = json_log.JsonLog(tmp_path, None)
  log.write(rows.row(1, x=np.float32(0.5), y=None, z=math.nan))
  log.write(rows.row(2))
  first, second = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  assert json.loads(first) == rows.row(1, x=0.5, y=None, z=None)
  assert json.loads(second) == rows.row(2)


def test_roll_back_drops_what_is_damaged_or_will_be_done_again(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  good = [json.dumps(rows.row(*at)) + '\n' for at in ((1, 10), (2, 20))]
  late = [json.dumps(rows.row(*at)) + '\n' for at in ((2, 25), (3, 20))]
  path.write_text(''.join(['7\n', '{"x": 1}\n', *good, *late, '{"time']))
  log = json_log.JsonLog(tmp_path, None)
  assert path.read_text().endswith(late[-1])
  log.roll_back(2, 20)
  assert path.read_text() == ''.join(good)
