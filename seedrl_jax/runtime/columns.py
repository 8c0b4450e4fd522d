"""A run's metrics: columns of metrics.csv and tags of TensorBoard.

A name is `group/quantity_unit`; without a unit it is a plain number.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Column(NamedTuple):
  """The unit ('' for a plain number) and the meaning of a column."""

  unit: str
  text: str


_STORE = {
  'size_unrolls': Column('unrolls', 'in the table now'),
  'inserted_unrolls': Column('unrolls', 'inserted so far'),
  'sampled_unrolls': Column('unrolls', 'sampled so far'),
  'samples_per_insert': Column('', 'measured replay ratio'),
  'writer_wait_s': Column('s', 'wait for room so far, all writers'),
  'sampler_wait_s': Column('s', 'wait for data so far, all samplers'),
}

TABLE: Mapping[str, Column] = {
  'time/elapsed_s': Column('s', 'training time, over all starts'),
  'time/env_frames': Column('frames', 'environment frames'),
  'time/env_steps': Column('steps', 'environment steps'),
  'time/updates': Column('updates', 'finished updates'),
  'time/frames_per_s': Column('frames/s', 'frames per second'),
  'time/updates_per_s': Column('updates/s', 'updates per second'),
  'time/wait_envs_for_actions_share': Column(
    '0..1', 'of the time, environments for actions'
  ),
  'time/wait_inference_for_envs_share': Column(
    '0..1', 'of the time, inference for environments'
  ),
  'time/wait_inference_for_learner_share': Column(
    '0..1', 'of the time, inference for room in the store'
  ),
  'time/wait_learner_for_data_share': Column(
    '0..1', 'of the time, the learner for a batch'
  ),
  'rollout/return': Column('reward', 'mean return, last 100 episodes'),
  'rollout/length_steps': Column('steps', 'mean length, last 100 episodes'),
  'eval/return': Column('reward', 'mean return, last 20 evaluation episodes'),
  'eval/length_steps': Column(
    'steps', 'mean length, last 20 evaluation episodes'
  ),
  **{f'replay/{name}': column for name, column in _STORE.items()},
  'replay/policy_lag_mean_updates': Column('updates', 'mean policy lag'),
  'replay/policy_lag_max_updates': Column('updates', 'largest policy lag'),
  'replay/priority_mean': Column('', 'R2D2: new priorities of a batch'),
  'replay/importance_weight_mean': Column('', 'R2D2: weights of a batch'),
  **{f'demonstrations/{name}': column for name, column in _STORE.items()},
  'actors/connected_envs': Column('environments', 'connected now'),
  'actors/stream_bytes': Column('bytes', 'between actors and learner so far'),
  'actors/store_bytes': Column('bytes', 'from actors to the store so far'),
  'actors/store_wait_s': Column('s', 'wait for room so far, all actors'),
  'losses/total': Column('', 'what the update descends on'),
  'losses/gradient_norm': Column('', 'before clipping'),
  'losses/update_norm': Column('', "of the parameters' change"),
  'losses/learning_rate': Column('', 'of the update'),
  'losses/masked_share': Column('0..1', 'of the steps, no transitions'),
  'losses/policy': Column('', 'V-trace: policy gradient loss'),
  'losses/baseline': Column('', 'V-trace: value loss'),
  'losses/entropy': Column('nats', 'V-trace: of the policy'),
  'losses/entropy_cost': Column('', 'V-trace: adapted to loss.target_entropy'),
  'losses/kl': Column('nats', 'V-trace: acting policy to learner policy'),
  'losses/rho': Column('', 'V-trace: mean importance ratio'),
  'losses/rho_clipped_share': Column('0..1', 'V-trace: of the ratios'),
  'losses/value_mean': Column('', 'V-trace: value'),
  'losses/value_target': Column('', 'V-trace: mean target of the value'),
  'losses/explained_variance': Column('', "V-trace: of the value's targets"),
  'losses/td_error': Column('', 'R2D2: mean |TD error|, rescaled'),
  'losses/q_mean': Column('', 'R2D2: Q of the actions taken, rescaled'),
  'losses/q_max': Column('', 'R2D2: mean Q of the best actions, rescaled'),
  'losses/q_target': Column('', 'R2D2: mean target, rescaled'),
}


def of_metric(name: str) -> str:
  """Returns the column of a metric; its group is `losses/` by default."""
  return name if '/' in name else f'losses/{name}'
