"""Folders of demonstrations, and the table that they fill.

`manifest.json` describes a folder; `sequences.zip` holds the leaves of a few
sequences at a time, each `[n, ...]`, and their priorities.
"""

import contextlib
import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from seedrl_jax import types
from seedrl_jax.replay import base, blocks, checkpoints
from seedrl_jax.runtime import file_io

# The table's name.
TABLE = 'demonstrations'

_VERSION = 3
_MANIFEST, _SEQUENCES = 'manifest.json', 'sequences.zip'
_FLAG = '--config.demonstrations.path'
_PRIORITY = types.ArraySpec((), np.dtype(np.float64))


@dataclasses.dataclass(frozen=True)
class Manifest:
  """Description of a folder.

  Attributes:
    episodes: number of episodes that the sequences were cut from.
    mean_return: of these, in raw rewards.
    unroll: `UnrollLayout.signature` of the sequences.
  """

  env_id: str
  sequences: int
  episodes: int
  mean_return: float
  made_by: str
  unroll: dict[str, Any]
  version: int = _VERSION


class FolderWriter:
  """Writes sequences; made by `create`, which needs `manifest` at the end."""

  def __init__(
    self, layout: blocks.UnrollLayout, file: checkpoints.ArchiveWriter
  ):
    self.layout = layout
    self._file = file
    file.meta['pieces'] = 0
    self.sequences = 0
    self.manifest: Manifest | None = None

  def allocate(self) -> base.Block:
    """Returns a block of one sequence."""
    return self.layout.new_block(1)

  def insert(
    self, block: base.Block, priorities: np.ndarray | None = None
  ) -> None:
    """Adds a block's sequences."""
    piece = self._file.meta['pieces']
    for i, rows in enumerate(self.layout.rows(block)):
      self._file.add_array(f'{piece}/{i}', rows)
    checked = base.check_priorities(priorities, block.width)
    self._file.add_array(f'{piece}/priorities', checked)
    self._file.meta['pieces'] += 1
    self.sequences += block.width


def check_new(path: str) -> None:
  """Makes the parents of `path`; raises ValueError if `path` exists."""
  target = pathlib.Path(path)
  if target.exists():
    raise ValueError(f'--out={path} exists already; name a new folder.')
  try:
    target.parent.mkdir(parents=True, exist_ok=True)
  except OSError as e:
    raise ValueError(f'--out={path} cannot be made ({e.strerror}).') from e


@contextlib.contextmanager
def create(path: str, layout: blocks.UnrollLayout) -> Iterator[FolderWriter]:
  """Yields a writer of a folder, which appears once the body has succeeded.

  Raises:
    ValueError: as `check_new`.
    OSError: if it cannot be written; nothing is left behind.
  """
  check_new(path)
  target = pathlib.Path(path)
  with tempfile.TemporaryDirectory(
    prefix=f'{target.name}.', suffix='.partial', dir=target.parent
  ) as scratch:
    unfinished = pathlib.Path(scratch, target.name)
    with checkpoints.create_archive(str(unfinished / _SEQUENCES)) as file:
      writer = FolderWriter(layout, file)
      yield writer
    assert writer.manifest is not None
    text = json.dumps(dataclasses.asdict(writer.manifest), indent=2)
    (unfinished / _MANIFEST).write_text(text + '\n')
    unfinished.rename(target)


def read_manifest(path: str) -> Manifest:
  """Returns a folder's manifest; raises ValueError if missing or damaged."""
  try:
    manifest = Manifest(**file_io.read_json(pathlib.Path(path, _MANIFEST)))
    if type(manifest.sequences) is not int or manifest.sequences < 1:
      raise ValueError(f'sequences={manifest.sequences}')
  except OSError as e:
    raise ValueError(
      f'{_FLAG}={path}: no demonstrations are there ({_MANIFEST}: '
      f'{e.strerror}); `seedrl record --out={path}` makes them.'
    ) from e
  except (TypeError, ValueError) as e:
    raise ValueError(
      f'{_FLAG}={path}: {_MANIFEST} is damaged ({e}); record them again.'
    ) from e
  if manifest.version != _VERSION:
    raise ValueError(
      f'{_FLAG}={path}: it is of version {manifest.version}, and this program '
      f'reads {_VERSION}; record them again.'
    )
  return manifest


def fill(store: base.TrajectoryStore, path: str, env_id: str) -> int:
  """Calls `insert_all` if the store's table is empty, else returns 0."""
  if store.info()[TABLE].size:
    return 0
  return insert_all(store, path, env_id)


def difference(store: base.TrajectoryStore, path: str) -> str:
  """Returns a warning if the table has not as many sequences, else ''."""
  table, count = store.info()[TABLE], read_manifest(path).sequences
  if table.size == min(count, table.config.max_size):
    return ''
  return (
    f'The table of demonstrations holds {table.size} sequences, and {_FLAG}='
    f'{path} {count}; the run keeps the table. To learn from the folder, start '
    'with another --workdir.'
  )


def insert_all(store: base.TrajectoryStore, path: str, env_id: str) -> int:
  """Inserts all sequences of a folder; returns how many have arrived.

  Raises:
    ValueError: if the folder is damaged or does not fit the run.
    StoreClosed: if the store is closed meanwhile.
  """
  manifest = read_manifest(path)
  start = f'{_FLAG}={path} does not fit this run'
  if manifest.env_id != env_id:
    raise ValueError(
      f'{start}: it was played in {manifest.env_id}, not in {env_id}.'
    )
  layout = blocks.UnrollLayout(store.unroll_spec, store.overlap)
  layout.check_signature(start, manifest.unroll)
  writer = store.table(TABLE)
  count = 0
  for leaves, priority in sequences(path, layout):
    block = writer.allocate()
    for rows, leaf in zip(layout.rows(block), leaves, strict=True):
      rows[0] = leaf
    writer.insert(block, priority)
    count += 1
  store.flush()
  return count


def sequences(
  path: str, layout: blocks.UnrollLayout
) -> Iterator[tuple[list[np.ndarray], np.ndarray]]:
  """Yields leaves `[...]` and priority `[1]` of each sequence."""
  file = pathlib.Path(path, _SEQUENCES)
  try:
    with (
      checkpoints.load_archive(str(file)) as reader,
      checkpoints.refusing_damage(str(file)),
    ):
      for piece in range(reader.meta['pieces']):
        priorities = reader.array(f'{piece}/priorities', _PRIORITY)
        leaves = [
          reader.array(f'{piece}/{i}', spec)
          for i, spec in enumerate(layout.specs)
        ]
        for row in range(len(priorities)):
          yield [leaf[row] for leaf in leaves], priorities[row : row + 1]
  except base.CheckpointError as e:
    raise ValueError(
      f'{_FLAG}={path}: {_SEQUENCES} is missing or damaged '
      f'({e.__cause__}); record them again.'
    ) from e
