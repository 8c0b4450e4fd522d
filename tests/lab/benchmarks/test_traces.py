"""Tests of `seedrl_jax.lab.benchmarks.traces` on traces made by hand."""

import pytest

from seedrl_jax.lab.benchmarks import traces

_THREADS = {7: 'Stream #1(Compute)', 8: 'Stream #2(MemcpyH2D)', 9: 'XLA Ops'}


def _event(tid, start, duration, name, module=None):
  args = {} if module is None else {'hlo_module': module, 'hlo_op': name}
  times = {'ts': start, 'dur': duration}
  return {'ph': 'X', 'pid': 1, 'tid': tid, 'name': name, 'args': args} | times


def _trace(process, *events):
  names = [
    {'ph': 'M', 'pid': 1, 'name': 'process_name', 'args': {'name': process}}
  ]
  for tid, name in _THREADS.items():
    meta = {'ph': 'M', 'pid': 1, 'tid': tid, 'name': 'thread_name'}
    names.append(meta | {'args': {'name': name}})
  return {'traceEvents': [*names, *events, {}]}


# Not in order; the copy reaches into the idle time after the first operation.
_TRACE = _trace(
  '/device:GPU:0',
  _event(7, 5000, 1000, 'fusion.1', 'jit_act'),
  _event(7, 0, 1000, 'fusion.1', 'jit_act(3)'),
  _event(8, 500, 1500, 'MemcpyH2D'),
  _event(7, 6000, 4000, 'dot', 'jit_update'),
  _event(9, 0, 10000, 'sums up', 'jit_act'),
)
_OPERATIONS = [
  traces.Operation('jit_act', 'fusion.1', 0, 1000),
  traces.Operation('', 'MemcpyH2D', 500, 2000),
  traces.Operation('jit_act', 'fusion.1', 5000, 6000),
  traces.Operation('jit_update', 'dot', 6000, 10000),
]


def test_a_gpus_operations_are_those_of_its_streams():
  assert traces.operations(_TRACE) == {'/device:GPU:0': _OPERATIONS}


@pytest.mark.parametrize(
  ('process', 'tid', 'name', 'count'),
  [
    ('/device:TPU:0', 9, 'dot', 1),
    ('/device:TPU:0', 6, 'Steps', 0),
    ('/host:CPU', 6, 'dot', 1),
    ('/host:CPU', 6, 'end: dot', 0),
    ('/host:metadata', 9, 'dot', 0),
  ],
)
def test_other_devices_operations(process, tid, name, count, monkeypatch):
  monkeypatch.setitem(_THREADS, 7, 'Steps')
  monkeypatch.setitem(_THREADS, 8, 'XLA Modules')
  found = traces.operations(_trace(process, _event(tid, 0, 1, name, 'jit_f')))
  assert sum(map(len, found.values())) == count


def test_a_gap_is_where_nothing_runs():
  (gap,) = traces.gaps(_OPERATIONS)
  assert gap == traces.Gap(3000, _OPERATIONS[1], _OPERATIONS[2])
  assert traces.busy_text(_OPERATIONS) == 'busy 70.0% of 10.0 ms'


def test_rows_add_up_programs_operations_and_gaps():
  rows = [tuple(row.values()) for row in traces.rows(_OPERATIONS, 2)]
  assert rows == [
    ('program', 'jit_update', '40.0%', '1', '4.000'),
    ('program', 'jit_act', '20.0%', '2', '1.000'),
    ('operation', 'jit_update dot', '40.0%', '1', '4.000'),
    ('operation', 'jit_act fusion.1', '20.0%', '2', '1.000'),
    ('idle', 'MemcpyH2D → jit_act fusion.1', '30.0%', '1', '3.000'),
  ]
