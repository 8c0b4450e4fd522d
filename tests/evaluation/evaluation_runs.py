"""Work directories with a checkpoint, and toys, for tests of evaluation."""

import pathlib
from typing import Any

import gymnasium
import jax
import ml_collections
import numpy as np
import pytest
from gymnasium import spaces

from seedrl_jax.agents import base as agents
from seedrl_jax.configs import base as base_config
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.learner import update
from seedrl_jax.runtime import checkpoints
from seedrl_jax.runtime import workdir as workdir_lib

# Flags that these toys' work directories need.
ALLOWED = (
  '--allow_factory=tests.evaluation.evaluation_runs:chooser',
  '--allow_factory=tests.envs.toys:scripted',
  '--allow_factory=tests.envs.toys:echo',
  '--allow_factory=tests.evaluation.constant_agent:make_agent',
)
LENGTH = 5
BEST = 2


class Chooser(gymnasium.Env):
  """Five steps; action 2 is rewarded with 1; each step has its colour."""

  metadata = {'render_modes': ['rgb_array'], 'render_fps': 10}  # noqa: RUF012

  def __init__(self, render_mode: str | None = None) -> None:
    self.observation_space = spaces.Box(0, 1, (2,), np.float32)
    self.action_space = spaces.Discrete(3)
    self.render_mode = render_mode
    self._step = 0

  def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
    super().reset(**kwargs)
    self._step = 0
    return np.zeros(2, np.float32), {}

  def step(
    self, action: Any
  ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
    self._step += 1
    reward = float(action == BEST)
    over = self._step == LENGTH
    return np.zeros(2, np.float32), reward, False, over, {}

  def render(self) -> np.ndarray:
    return np.full((12, 16, 3), 40 * self._step, np.uint8)


def chooser(render_mode: str | None = None) -> gymnasium.Env:
  return Chooser(render_mode)


def echo(kind: str) -> dict[str, Any]:
  """Returns config keys for `tests.envs.toys.Echo` and an agent for it."""
  return {
    'agent': 'tests.evaluation.constant_agent',
    'env__factory': 'tests.envs.toys:echo',
    'env__factory_kwargs': ml_collections.ConfigDict({'kind': kind}),
  }


def config(factory: str = 'tests.evaluation.evaluation_runs:chooser') -> Any:
  """Returns the configuration of a tiny V-trace run."""
  run = base_config.get_config()
  run.env.factory = factory
  run.env.num_envs = 4
  run.replay.backend = 'embedded'
  run.network.hidden_sizes = (4,)
  return run


def save(folder: pathlib.Path, run: Any, *preferences: float) -> None:
  """Makes a work directory with checkpoints 1, 2, ….

  Each of `preferences` has a checkpoint's policy logits per action number:
  positive ones prefer the last action, whatever is observed.
  """

  def prefer(state: agents.State, preference: float) -> agents.State:
    logits = preference * np.arange(num_actions, dtype=np.float32)
    params = jax.tree.map(
      lambda x: logits if x.shape == logits.shape else np.zeros_like(x),
      state.params,
    )
    return state._replace(params=params)

  num_actions = env_factory.make_env_spec(run).action.num_values
  initial = initial_state(run)
  save_states(folder, run, *[prefer(initial, p) for p in preferences])


def initial_state(run: Any) -> agents.State:
  """Returns an initial state of a run's agent."""
  agent = agents.load_agent(run, env_factory.make_env_spec(run))
  return agent.init(jax.random.PRNGKey(0))


def save_states(folder: pathlib.Path, run: Any, *states: agents.State) -> None:
  """Makes a work directory with checkpoints 1, 2, … of these states."""
  directory = workdir_lib.Workdir(folder)
  folder.mkdir(parents=True, exist_ok=True)
  spec = env_factory.make_env_spec(run)
  run = run.copy_and_resolve_references()
  run.env.id = spec.env_id
  directory.write_config(run)
  directory.write_env_spec(spec)
  store = checkpoints.Checkpoints(directory.checkpoints)
  for step, of_step in enumerate(states, start=1):
    state = update.LearnerState(of_step, np.int32(step), np.zeros(2))
    store.save(step, state, {})


def damage(folder: pathlib.Path, step: int) -> None:
  """Truncates a checkpoint."""
  file = folder / 'checkpoints' / str(step)
  file.write_bytes(file.read_bytes()[:7])


def count_closes(monkeypatch: pytest.MonkeyPatch, owner: type) -> list[int]:
  """Returns a list that gains an entry when one of `owner` is closed."""
  closes: list[int] = []
  close = owner.close
  monkeypatch.setattr(owner, 'close', lambda x: (closes.append(1), close(x)))
  return closes
