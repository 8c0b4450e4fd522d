"""Published scores of a random policy and of a human on the 57 Atari games.

Wang et al. 2016 (dueling networks, arXiv 1511.06581), table 2: after up to 30
no-ops, at most 30 minutes. Later papers normalise by these.
"""

import csv
import pathlib
import re
from collections.abc import Mapping

# Random and human score by the name in the ids of EnvPool and ALE.
_TABLE = pathlib.Path(__file__).with_name('atari.csv')
with _TABLE.open(newline='') as _rows:
  SCORES = {
    row['game']: (float(row['random']), float(row['human']))
    for row in csv.DictReader(_rows)
  }


def game(env_id: str) -> str | None:
  """Returns the game of an environment's id, None if it is none of the 57."""
  match = re.fullmatch(
    r'(?:gymnasium:)?(?:ALE/)?(\w+?)(?:NoFrameskip)?-v\d', env_id
  )
  return match[1] if match and match[1] in SCORES else None


def capped_mean(returns: Mapping[str, float]) -> float | None:
  """Returns the mean of human-normalised returns by id, each at most 1.

  None if one is of no game. Published for several tasks at once, as by Hessel
  et al. 2018 (arXiv 1809.04474), since games far above 1 hide the others.
  """
  scores = []
  for env_id, value in returns.items():
    name = game(env_id)
    if name is None:
      return None
    random, human = SCORES[name]
    scores.append(min(1.0, (value - random) / (human - random)))
  return sum(scores) / len(scores) if scores else None
