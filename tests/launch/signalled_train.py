"""launch/train.py that gets the signals SIGNALS when it begins to compile."""

import os
import signal

from seedrl_jax.launch import train
from seedrl_jax.learner import learner

_SIGNALS = [signal.Signals[name] for name in os.environ['SIGNALS'].split()]
_compile = learner.Learner.compile


def _compile_signalled(self: learner.Learner, *args: object) -> None:
  for number in _SIGNALS:
    os.kill(os.getpid(), number)
  _compile(self, *args)


if __name__ == '__main__':
  learner.Learner.compile = _compile_signalled
  train.start()
