"""Our client and the official one exchange items through a real server.

Bit for bit, in both directions: random nests, element types, chunk lengths,
slices and squeezed columns.
"""

import json
import pathlib
import subprocess
from typing import Any

import numpy as np
import pytest

from seedrl_jax.replay.reverb.client import (
  connection,
  insert_stream,
  items,
  sampler,
)
from seedrl_jax.replay.reverb.server import server
from seedrl_jax.runtime import nest
from tests.patience import PATIENCE
from tests.replay.reverb import columns

_OFFICIAL = pathlib.Path(__file__).with_name('official.py')
_SEEDS = range(6)
_DTYPES = ['float16', 'float32', 'float64', 'bool']
_DTYPES += ['int8', 'int16', 'int32', 'int64']
_DTYPES += ['uint8', 'uint16', 'uint32', 'uint64']
_SHAPES = [(), (3,), (2, 3), (0,), (2, 0), (1,)]


@pytest.fixture(scope='module', name='address')
def address_fixture(server_python):
  names = [f'{kind}{seed}' for kind in 'ac' for seed in _SEEDS]
  free = {
    'priority_exponent': 0.0,
    'samples_per_insert': 1.0,
    'min_size_to_sample': 1,
    'min_diff': -1e300,
    'max_diff': 1e300,
  }
  queue = {'sampler': 'fifo', 'max_times_sampled': 1}
  tables = [{'name': n, 'max_size': 100, **queue, **free} for n in names]
  with server.ReverbServer(server_python, tables) as running:
    running.start()
    yield running.address


@pytest.fixture(scope='module', name='official')
def official_fixture(server_python, address, tmp_path_factory):
  log = tmp_path_factory.mktemp('official') / 'log'
  with log.open('w') as file:
    process = subprocess.Popen(
      [server_python, _OFFICIAL, address],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=file,
      text=True,
    )

  def official(do: str, table: str, path: pathlib.Path, plan: Any) -> None:
    command = {'do': do, 'table': table, 'path': str(path), 'plan': plan}
    process.stdin.write(json.dumps(command) + '\n')
    process.stdin.flush()
    answer = process.stdout.readline()
    assert answer == 'done\n', log.read_text()

  yield official
  process.stdin.close()
  process.stdout.close()
  process.wait(PATIENCE)


@pytest.fixture(name='link')
def link_fixture(address):
  link = connection.Connection(address, PATIENCE)
  yield link
  link.close()


class _Plan:
  """Random leaves `[steps, ...]` in a random nest, and items of their rows."""

  def __init__(self, seed: int):
    self.rng = np.random.default_rng(seed)
    self.steps = int(self.rng.integers(3, 9))
    count = int(self.rng.integers(2, 8))
    # Some seed has every element type and shape.
    first = seed * 3
    self.leaves = [
      self._array(_DTYPES[(first + i) % len(_DTYPES)], _SHAPES[(first + i) % 6])
      for i in range(count)
    ]
    self.structure = self._nest(list(range(count)))
    # In the order in which both clients flatten.
    order = nest.flatten(self.structure)
    self.leaves = [self.leaves[i] for i in order]
    numbers = iter(range(count))
    self.structure = nest.unflatten(self.structure, numbers)
    self.chunk_lengths = self.rng.integers(1, self.steps + 1, count).tolist()
    self.items = [
      {'priority': float(i + 1), 'columns': self._columns()} for i in range(4)
    ]

  def _array(self, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    dtype = np.dtype(dtype)
    size = self.steps * int(np.prod(shape)) * dtype.itemsize
    raw = self.rng.integers(0, 2 if dtype.kind == 'b' else 256, size, np.uint8)
    return raw.view(dtype).reshape(self.steps, *shape)

  def _nest(self, numbers: list[int]) -> Any:
    if len(numbers) == 1:
      return numbers[0]
    cut = int(self.rng.integers(1, len(numbers)))
    parts = [self._nest(numbers[:cut]), self._nest(numbers[cut:])]
    if self.rng.random() < 0.5:
      return parts
    return dict(zip('zb', parts, strict=True))

  def _columns(self) -> list[tuple[int, int, int | None]]:
    """Returns random (leaf, start, end); no end: one row, squeezed."""
    columns: list[tuple[int, int, int | None]] = []
    for leaf in range(len(self.leaves)):
      start = int(self.rng.integers(self.steps))
      end = int(self.rng.integers(start + 1, self.steps + 1))
      columns.append((leaf, start, None if self.rng.random() < 0.3 else end))
    return columns

  def save(self, path: pathlib.Path) -> dict[str, Any]:
    """Writes the leaves; returns the plan for the official client."""
    np.savez(path, **{f'leaf{i}': a for i, a in enumerate(self.leaves)})
    return {
      'leaves': len(self.leaves),
      'structure': self.structure,
      'chunk_lengths': self.chunk_lengths,
      'items': self.items,
    }

  def expected(self, item: dict[str, Any]) -> list[np.ndarray]:
    """Returns an item's columns."""
    return [
      self.leaves[leaf][start] if end is None else self.leaves[leaf][start:end]
      for leaf, start, end in item['columns']
    ]


def _assert_same(actual: np.ndarray, expected: np.ndarray) -> None:
  assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
  assert actual.tobytes() == np.asarray(expected).tobytes()


def _sample(
  link: connection.Connection, table: str, count: int
) -> list[items.DrawnItem]:
  drawing: Any = sampler.Sampler(link, table, count, decode=lambda drawn: drawn)
  try:
    return drawing.sample()
  finally:
    # Ends what it draws ahead.
    link.close()
    drawing.close()


@pytest.mark.parametrize('seed', _SEEDS)
def test_we_read_what_the_official_client_writes(
  seed, official, link, tmp_path
):
  plan, path = _Plan(seed), tmp_path / 'leaves.npz'
  official('write', f'a{seed}', path, plan.save(path))
  drawn = _sample(link, f'a{seed}', len(plan.items))
  for sample, item in zip(drawn, plan.items, strict=True):
    assert sample.info.item.priority == item['priority']
    assert sample.info.probability == 1.0
    expected = plan.expected(item)
    for decoded, array in zip(
      columns.decode_columns(sample), expected, strict=True
    ):
      _assert_same(decoded, array)


def _our_columns(plan: _Plan) -> list[list[items.Chunk]]:
  return [
    [
      items.encode_chunk([leaf[i : i + length]])
      for i in range(0, plan.steps, length)
    ]
    for leaf, length in zip(plan.leaves, plan.chunk_lengths, strict=True)
  ]


def _our_column(
  chunks: list[items.Chunk], start: int, end: int | None
) -> items.ItemColumn:
  slices, row = [], 0
  stop = start + 1 if end is None else end
  for chunk in chunks:
    first, last = max(start - row, 0), min(stop - row, chunk.rows)
    if first < last:
      slices.append(items.Slice(chunk, 0, first, last - first))
    row += chunk.rows
  return items.ItemColumn(slices, squeeze=end is None)


@pytest.mark.parametrize('seed', _SEEDS)
def test_the_official_client_reads_what_we_write(
  seed, official, link, tmp_path
):
  plan, path = _Plan(seed), tmp_path / 'read.npz'
  table = f'c{seed}'
  chunks = _our_columns(plan)
  entries = [
    items.make_item(
      table,
      item['priority'],
      [_our_column(chunks[i], start, end) for i, start, end in item['columns']],
    )
    for item in plan.items
  ]
  stream = insert_stream.InsertStream(link, table, 2)
  # Two inserts, so that the second reuses chunks.
  kept = {c.key for column in chunks for c in column}
  stream.insert(lambda: items.Encoded(entries[:2], kept))
  stream.insert(lambda: items.Encoded(entries[2:]))
  stream.flush(PATIENCE)
  stream.close()
  official('read', table, path, {'count': len(entries)})
  with np.load(path) as file:
    for i, (item, ours) in enumerate(zip(plan.items, entries, strict=True)):
      assert int(file[f'key{i}']) == ours.key
      assert float(file[f'priority{i}']) == item['priority']
      for j, expected in enumerate(plan.expected(item)):
        _assert_same(file[f'item{i}_{j}'], expected)
