"""The configuration keys of demonstrations."""

from seedrl_jax.runtime.keys import Key, Section, Table
from seedrl_jax.runtime.settings import LARGE, TEXT, integer, number, optional

KEYS: Table = {
  'demonstrations': Section('Demonstrations that R2D3 also trains on.'),
  'demonstrations.path': Key(
    '',
    TEXT,
    'A folder that seedrl record has written. The run inserts it into a '
    'separate table, if that is empty.',
  ),
  'demonstrations.fraction': Key(
    0.0,
    number(0, below=1),
    'Share of demonstrations in each batch. 0 means no such table.',
  ),
  'demonstrations.max_size': Key(
    None,
    optional(integer(1, LARGE)),
    'Maximum number of sequences. None means all in the folder.',
    int,
  ),
}
