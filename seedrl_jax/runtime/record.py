"""What a checkpoint says of a run beside the learner's state.

`system` writes it with every checkpoint and continues from it.
"""

import dataclasses


@dataclasses.dataclass
class RunRecord:
  """Counters of the run so far, over all its starts.

  Attributes:
    env_steps, eval_steps: transitions of training and evaluation environments.
    seconds: of training.
    starts: how often the run was started; environments' seeds depend on it.
    returns, eval_returns: of the last episodes.
    replay: what `replay.saving` calls the replay's part; '' for none.
    inference_keys: PRNG key of each inference stream, as integers.
  """

  env_steps: int = 0
  eval_steps: int = 0
  seconds: float = 0.0
  starts: int = 0
  returns: list[float] = dataclasses.field(default_factory=list)
  eval_returns: list[float] = dataclasses.field(default_factory=list)
  replay: str = ''
  inference_keys: list[list[int]] = dataclasses.field(default_factory=list)
