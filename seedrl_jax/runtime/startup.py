"""Tells seedrl benchmark which parts of a run's start are done."""

import os
import sys

# If set, a start prints its parts on standard error.
VARIABLE = 'SEEDRL_TELL_START'


def ready(part: str) -> None:
  """Tells that a part is done."""
  if os.environ.get(VARIABLE):
    print(f'Ready: {part}.', file=sys.stderr, flush=True)
