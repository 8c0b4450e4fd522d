"""What the keys of the configuration that are R2D2's own may be."""

from seedrl_jax.runtime.settings import FLAG, Allowed, integer, number, one_of

RANGES: dict[str, Allowed] = {
  'burn_in': integer(0),
  'lookahead': integer(0),
  'network.dueling': FLAG,
  'network.head_hidden_size': integer(0),
  'loss.discount': number(0, 1),
  'loss.n_steps': integer(1),
  'loss.double_q': FLAG,
  'loss.rescale_epsilon': number(),
  'loss.huber_delta': number(0),
  'loss.reward_clip': number(0),
  'loss.reward_scale': number(),
  'loss.reduction': one_of('sum', 'mean'),
  'loss.priority_eta': number(0, 1),
  'loss.target_update_period': integer(1),
  'loss.initial_state': one_of('stored', 'zero'),
  'exploration.epsilon_base': number(0, 1),
  'exploration.epsilon_alpha': number(0),
  'exploration.eval_epsilon': number(0, 1),
}
