"""Tests for seedrl_jax/runtime/writers/text_logs.py."""

import json
import math

import numpy as np
import pytest

from seedrl_jax.runtime.writers import text_logs
from tests.runtime.writers import rows

_HEADER = 'time/updates,time/env_frames'


def _log(folder):
  return text_logs.CsvLog(folder, None)


def test_columns_grow_over_starts(tmp_path):
  path = tmp_path / 'metrics.csv'
  log = _log(tmp_path)
  log.write(rows.row(1, x=2.5))
  log.write(rows.row(2, y=3, x=None))
  assert path.read_text() == f'{_HEADER},x,y\n1,100,2.5,\n2,200,,3\n'
  _log(tmp_path).write(rows.row(3, z=4))
  assert path.read_text() == (
    f'{_HEADER},x,y,z\n1,100,2.5,,\n2,200,,3,\n3,300,,,4\n'
  )
  assert [p.name for p in tmp_path.iterdir()] == ['metrics.csv']


@pytest.mark.parametrize('tail', ['3', '3,', '3,4'])
def test_half_written_last_line_is_cut_off(tmp_path, capsys, tail):
  path = tmp_path / 'metrics.csv'
  path.write_text(f'{_HEADER}\n1,2\n{tail}')
  _log(tmp_path).write(rows.row(5, 6))
  assert path.read_text() == f'{_HEADER}\n1,2\n5,6\n'
  assert not capsys.readouterr().out


@pytest.mark.parametrize('data', [b'', b'\x00\xff\xfe\n', b'a,b\n1,2\n'])
def test_what_is_no_curve_is_put_aside(tmp_path, capsys, data):
  path = tmp_path / 'metrics.csv'
  path.write_bytes(data)
  log = _log(tmp_path)
  log.roll_back(0, 0)
  log.write(rows.row(1))
  sentence = capsys.readouterr().out
  assert sentence.startswith(f'{path} cannot be continued (')
  assert sentence.endswith('); it is now metrics.csv.damaged-1.\n')
  assert (tmp_path / 'metrics.csv.damaged-1').read_bytes() == data
  assert path.read_text() == f'{_HEADER}\n1,100\n'


def test_roll_back_drops_what_is_damaged_or_will_be_done_again(tmp_path):
  path = tmp_path / 'metrics.csv'
  lines = '1,10\n2,20\n2,25\n3,30\n'
  path.write_text(f'{_HEADER}\n\x00\n1,2,3\nx,1\n{lines}')
  log = _log(tmp_path)
  log.roll_back(2, 99)
  assert path.read_text() == f'{_HEADER}\n1,10\n2,20\n2,25\n'
  log.roll_back(2, 20)
  assert path.read_text() == f'{_HEADER}\n1,10\n2,20\n'
  log.roll_back(0, 20)
  log.write(rows.row(9, 9))
  assert path.read_text() == f'{_HEADER}\n9,9\n'


def test_a_line_is_one_report(tmp_path):
  log = text_logs.JsonLog(tmp_path, None)
  log.write(rows.row(1, x=np.float32(0.5), y=None, z=math.nan))
  log.write(rows.row(2))
  first, second = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  assert json.loads(first) == rows.row(1, x=0.5, y=None, z=None)
  assert json.loads(second) == rows.row(2)


def test_json_roll_back_drops_what_is_damaged_or_will_be_done_again(
  tmp_path,
):
  path = tmp_path / 'metrics.jsonl'
  good = [json.dumps(rows.row(*at)) + '\n' for at in ((1, 10), (2, 20))]
  late = [json.dumps(rows.row(*at)) + '\n' for at in ((2, 25), (3, 20))]
  path.write_text(''.join(['7\n', '{"x": 1}\n', *good, *late, '{"time']))
  log = text_logs.JsonLog(tmp_path, None)
  assert path.read_text().endswith(late[-1])
  log.roll_back(2, 20)
  assert path.read_text() == ''.join(good)
