"""The official client's part in the interoperation tests.

Run as `official.py ADDRESS` by the server environment's Python; answers each
JSON command on standard input by a line, 'done' or the error. Arrays are in
NumPy archives.
"""

import json
import sys

import numpy as np
import reverb
import tree


def _fill(structure, leaves):
  """Returns `structure` with each number replaced by that leaf."""
  if isinstance(structure, dict):
    return {key: _fill(part, leaves) for key, part in structure.items()}
  if isinstance(structure, list):
    return [_fill(part, leaves) for part in structure]
  return leaves[structure]


def _leaves(path, plan):
  with np.load(path) as file:
    return [file[f'leaf{i}'] for i in range(plan['leaves'])]


def write(client, table, path, plan):
  """Writes by TrajectoryWriter, cut into chunks and slices."""
  leaves = _leaves(path, plan)
  steps = len(leaves[0])
  with client.trajectory_writer(num_keep_alive_refs=steps) as writer:
    paths = tree.flatten_with_path(plan['structure'])
    for (place, leaf), length in zip(paths, plan['chunk_lengths'], strict=True):
      del leaf
      writer.configure(
        place, num_keep_alive_refs=steps, max_chunk_length=length
      )
    for step in range(steps):
      row = [leaf[step] for leaf in leaves]
      writer.append(_fill(plan['structure'], row))
    history = tree.flatten(writer.history)
    for item in plan['items']:
      # Negative, as it takes a slice up to its own length for empty.
      columns = [
        history[leaf][start]
        if end is None
        else history[leaf][start - steps : end - steps or None]
        for leaf, start, end in item['columns']
      ]
      writer.create_item(table, item['priority'], columns)
    writer.flush()


def read(client, table, path, plan):
  """Saves the first items of a queue."""
  arrays = {}
  drawn = client.sample(table, plan['count'], emit_timesteps=False)
  for i, sample in enumerate(drawn):
    arrays[f'priority{i}'] = sample.info.priority
    arrays[f'key{i}'] = sample.info.key
    arrays |= {f'item{i}_{j}': leaf for j, leaf in enumerate(sample.data)}
  np.savez(path, **arrays)


_COMMANDS = {'write': write, 'read': read}


def main():
  client = reverb.Client(sys.argv[1])
  for line in sys.stdin:
    command = json.loads(line)
    does = _COMMANDS[command['do']]
    try:
      does(client, command['table'], command['path'], command['plan'])
      print('done', flush=True)
    except Exception as e:
      print(repr(e).replace('\n', ' '), flush=True)


if __name__ == '__main__':
  main()
