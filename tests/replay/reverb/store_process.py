"""A process with a store of toy unrolls on a shared server.

Its argument is JSON: `address`, `rules` (fields of a table's configuration),
`role`, and for a writer `first` and `last`, the numbers that it writes. A
sampler prints each batch's numbers, gives even ones the priority 0, and ends
with its standard input.
"""

import json
import sys
import threading
from typing import Any

import numpy as np

from seedrl_jax.replay import base as replay
from seedrl_jax.replay import table_configs
from seedrl_jax.replay.reverb.client import server_location, store
from tests.replay.conftest import PATIENCE, Toy

# Unrolls of a block and of a batch; a larger one might wait for its rest.
WIDTH = 2


def make_store(address: str, rules: dict[str, Any]) -> store.ReverbStore:
  is_replay = 'sampler' in rules
  kind = table_configs.ReplayConfig if is_replay else table_configs.QueueConfig
  return store.ReverbStore(
    [kind(**rules)],
    Toy().spec(),
    WIDTH,
    lambda tables: server_location.ExternalServer(address, tables, PATIENCE),
    WIDTH,
  )


def _write(made: store.ReverbStore, first: int, last: int) -> None:
  for number in range(first, last, WIDTH):
    Toy().insert(made, 't', [number, number + 1])
  made.flush()


def _sample(made: store.ReverbStore) -> None:
  sampler = made.table('t').sampler(WIDTH)
  try:
    while True:
      sample = sampler.sample()
      numbers = Toy().numbers(sample)
      priorities = np.asarray(numbers) % 2.0
      sample.update_priorities(priorities)
      sample.release()
      print(json.dumps(numbers), flush=True)
  except replay.StoreClosed:
    pass


def main() -> None:
  task = json.loads(sys.argv[1])
  made = make_store(task['address'], task['rules'])
  if task['role'] == 'write':
    _write(made, task['first'], task['last'])
  else:
    thread = threading.Thread(target=_sample, args=(made,))
    thread.start()
    sys.stdin.read()
    made.interrupt()
    thread.join()
    # Otherwise the last priorities would be dropped.
    made.flush()
  made.close()


if __name__ == '__main__':
  main()
