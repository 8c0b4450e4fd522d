"""Inference in an actor's process, as in IMPALA; `--inference=local`.

Uses the parts of central inference, but writes unrolls straight to Reverb.
Espeholt et al. 2018, arXiv 1802.01561, section 3.
"""

import threading
from collections.abc import Callable, Sequence

import jax
import ml_collections
import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import addresses, credentials, handshake, local_messages
from seedrl_jax.actors.actor_side import actor_loops
from seedrl_jax.actors.actor_side.connection import PeerLost
from seedrl_jax.agents import base as agents
from seedrl_jax.envs import base as envs
from seedrl_jax.envs import local_stream
from seedrl_jax.inference import assembler as assembler_lib
from seedrl_jax.inference import device_step as device_step_lib
from seedrl_jax.inference import specs
from seedrl_jax.inference import worker as worker_lib
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import table_configs
from seedrl_jax.replay.reverb.client import (
  errors,
  server_location,
  server_rules,
)
from seedrl_jax.replay.reverb.client import store as reverb_store
from seedrl_jax.replay.reverb.server import server
from seedrl_jax.runtime import threads

_REPORT_SECONDS = 1.0  # between two reports, at most
# Seconds for a Reverb server's first answer, for an insert before the user is
# informed, and for the thread to end.
_ANSWER, _LONG_WAIT, _JOIN = 10.0, 10.0, 60.0


class LocalInference:
  """Acts for a group's environments; an `actor_loops.LocalActor`."""

  def __init__(
    self,
    learner: addresses.Address,
    security: credentials.Security,
    say: Callable[[str], None],
    welcome: handshake.Welcome,
    stream: local_stream.LocalStream,
  ):
    """Makes the agent, or raises `IncompatibleLearner`.

    `welcome` has `local`; `close` closes `stream`.
    """
    assert welcome.local is not None
    self._say = say
    self._env_id, self._run = welcome.env_id, welcome.local
    self._stream = stream
    self._config = ml_collections.ConfigDict(self._run.config)
    self._address = _replay_address(self._run, learner, security)
    self._make_agent(jax.random.PRNGKey(welcome.seed))
    self._newest: tuple[int, agents.Params] | None = None
    self._worker: worker_lib.InferenceWorker | None = None
    self._store: reverb_store.ReverbStore | None = None
    self._assembler: assembler_lib.UnrollAssembler | None = None
    self._told = local_messages.ReportTotals()
    self._complained = False
    # Set when parameters have arrived, and when a report is due.
    self._arrived, self._due = threading.Event(), threading.Event()
    self._threads = threads.ThreadGroup((replay.StoreClosed, envs.StreamClosed))
    self._threads.on_stop(stream.close)
    self._threads.on_stop(self._interrupt_store)
    self._threads.on_stop(self._arrived.set)
    self._threads.on_stop(self._due.set)

  def _make_agent(self, key: jax.Array) -> None:
    self._device = jax.local_devices(backend='cpu')[0]
    self._env_spec = _env_spec(self._stream.spec, self._run)
    try:
      self._agent = agents.load_agent(self._config, self._env_spec)
    except (ValueError, ImportError) as e:
      raise actor_loops.IncompatibleLearner(str(e)) from e
    self._shapes = self._agent.params_shapes()
    _check_parameters(self._shapes, self._run)
    self._output_spec = specs.output_spec(
      self._agent, self._env_spec, self._shapes
    )
    self._device_step = device_step_lib.DeviceStep(
      self._agent,
      self._env_spec,
      self._output_spec,
      self._device,
      self._stream.num_envs,
      key,
    )

  def start(self) -> None:
    self._threads.start('inference', self._act)

  def take(self, version: int, leaves: Sequence[np.ndarray]) -> None:
    params = jax.tree.unflatten(jax.tree.structure(self._shapes), leaves)
    # Here, so that inference need not wait for the copy.
    params = jax.block_until_ready(jax.device_put(params, self._device))
    self._newest = version, params
    self._arrived.set()

  def report(self) -> local_messages.Report:
    if self._threads.failure is not None:
      error = self._threads.failure.error
      # It may come back, or the learner may start another.
      if isinstance(error, errors.ServerLost):
        raise PeerLost(str(error)) from error
      raise error
    done = self._done()
    told, self._told = self._told, done
    return local_messages.Report(
      version=types.NO_VERSION if self._newest is None else self._newest[0],
      env_steps=done.env_steps - told.env_steps,
      store_wait=done.store_wait - told.store_wait,
      store_bytes=done.store_bytes - told.store_bytes,
      episodes=local_messages.episode_columns(
        self._stream.take_episodes(), self._env_id
      ),
    )

  def wait(self) -> None:
    self._due.wait(_REPORT_SECONDS)
    self._due.clear()

  def close(self) -> None:
    """Closes all; raises `RuntimeError` if the thread does not end."""
    self._threads.stop()
    stuck = self._threads.join(_JOIN)
    if self._store is not None:
      self._store.close()
    if stuck:
      raise RuntimeError('\n'.join(stuck))

  def _done(self) -> local_messages.ReportTotals:
    worker, store, assembler = self._worker, self._store, self._assembler
    if worker is None or store is None or assembler is None:
      return local_messages.ReportTotals()
    waiting = assembler.waiting
    if waiting > _LONG_WAIT and not self._complained:
      self._say(
        f'The replay has taken no unroll for {waiting:.0f} s: waiting for the '
        'learner to train on what there is.'
      )
    self._complained = waiting > _LONG_WAIT
    return local_messages.ReportTotals(
      worker.counters.env_steps, assembler.waited, store.bytes_sent
    )

  def _interrupt_store(self) -> None:
    if self._store is not None:
      self._store.interrupt()

  # -- in the thread of inference ----------------------------------------------

  def _act(self) -> None:
    self._worker = worker = self._open()
    self._arrived.wait()
    if self._threads.should_stop():
      return
    worker.compile()
    stream = self._stream
    # Batches in which every environment makes one unroll.
    round_of_unrolls = max(
      1, self._config.unroll_length * stream.num_envs // stream.batch_size
    )
    while not self._threads.should_stop():
      worker.step()
      if worker.counters.batches % round_of_unrolls == 0:
        self._due.set()

  def _open(self) -> worker_lib.InferenceWorker:
    config, run, agent = self._config, self._run, self._agent
    unroll_spec = specs.unroll_spec(
      self._env_spec,
      agent.num_transitions(config.unroll_length),
      self._output_spec,
      specs.core_spec(agent),
    )
    width = table_configs.table_config(config).writer_width(
      run.block_width, self._stream.num_envs
    )
    self._store = self._connect(unroll_spec, width)
    self._assembler = assembler_lib.UnrollAssembler(
      self._store.table(table_configs.TABLE),
      run.global_env_id,
      agent.num_transitions(config.unroll_length),
      agent.overlap,
      width,
      assembler_lib.make_priorities(agent, unroll_spec, width, self._device),
    )
    return worker_lib.InferenceWorker(
      stream=self._stream,
      device_step=self._device_step,
      sink=self._assembler,
      parameters=self._parameters,
      global_env_id=run.global_env_id,
    )

  def _connect(
    self, unroll_spec: types.Unroll, width: int
  ) -> reverb_store.ReverbStore:
    return _connect(self._address, self._run, self._agent, unroll_spec, width)

  def _parameters(self) -> tuple[int, agents.Params]:
    assert self._newest is not None, 'inference begins with parameters'
    return self._newest


def _connect(
  address: str,
  run: handshake.LocalRun,
  agent: agents.Agent,
  unroll_spec: types.Unroll,
  width: int,
) -> reverb_store.ReverbStore:
  """Connects to the Reverb server; see `ReverbStore` for `width`."""
  if not server.answers(address, _ANSWER):
    raise errors.ServerLost(
      f'the Reverb server of the learner does not answer at {address}; let '
      'this host reach that port, or start a server that all reach '
      '(launch/reverb_server.py) and give the learner its '
      '--config.replay.address=host:port.'
    )
  config = ml_collections.ConfigDict(run.config)
  table = table_configs.table_config(config)
  served = server_rules.server_rules(table, run.block_width, config.batch_size)
  try:
    return reverb_store.ReverbStore(
      [table],
      unroll_spec,
      width,
      lambda _, on_restart: server_location.ExternalServer(
        address, [served], config.replay.patience
      ),
      config.batch_size,
      agent.overlap,
    )
  except (errors.RequestRefused, errors.UnknownTable) as e:
    raise actor_loops.IncompatibleLearner(str(e)) from e


def _env_spec(spec: envs.StreamSpec, run: handshake.LocalRun) -> types.EnvSpec:
  return types.EnvSpec(
    env_id=spec.name,
    observation=spec.observation,
    action=spec.action,
    action_repeat=spec.action_repeat,
    num_envs=run.num_train_envs,
    num_eval_envs=run.num_eval_envs,
  )


def _replay_address(
  run: handshake.LocalRun,
  learner: addresses.Address,
  security: credentials.Security,
) -> str:
  found = addresses.as_seen_from_actor(run.replay_address, learner)
  if not found.is_local and not security.insecure:
    raise actor_loops.IncompatibleLearner(
      f'Reverb at {found.text} takes unrolls in the clear, without TLS or a '
      'token; trust the network between with --insecure, or take '
      '--inference=central.'
    )
  return found.text


def _check_parameters(shapes: agents.Params, run: handshake.LocalRun) -> None:
  """Checks that the agent has the parameters that the learner will send."""
  ours, theirs = agents.parameter_specs(shapes), run.parameters
  if list(ours.items()) == list(theirs.items()):
    return
  differing = sorted(
    name
    for name in ours.keys() | theirs.keys()
    if ours.get(name) != theirs.get(name)
  )
  raise actor_loops.IncompatibleLearner(
    'the agent has other parameters at the actor than at the learner '
    f'({", ".join(differing) or "their order"}): install the same release of '
    'seedrl-jax, and of the agent, on both sides.'
  )
