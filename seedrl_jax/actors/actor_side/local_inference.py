"""Inference in an actor's process, as in IMPALA; `--inference=local`.

Uses the parts of central inference, but writes unrolls straight to Reverb.
Espeholt et al. 2018, arXiv 1802.01561, section 3.
"""

import operator
import threading
from collections.abc import Callable, Sequence

import jax
import ml_collections
import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import handshake, local_messages
from seedrl_jax.actors.actor_side.connection import (
  IncompatibleLearner,
  PeerLost,
)
from seedrl_jax.agents import base as agents
from seedrl_jax.envs import base as envs
from seedrl_jax.inference import assembler as assembler_lib
from seedrl_jax.inference import device_step as device_step_lib
from seedrl_jax.inference import specs
from seedrl_jax.inference import worker as worker_lib
from seedrl_jax.net import addresses, credentials
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import table_configs
from seedrl_jax.replay.reverb import errors
from seedrl_jax.replay.reverb.client import (
  connection,
  server_location,
  server_rules,
)
from seedrl_jax.replay.reverb.client import store as reverb_store
from seedrl_jax.runtime import settings, threads

_REPORT_SECONDS = 1.0  # between two reports, at most
# Seconds for a Reverb server's first answer, and for the thread to end.
_ANSWER, _JOIN = 10.0, 60.0


class LocalInference:
  """Acts for a group's environments, in a thread of its own."""

  def __init__(
    self,
    learner: addresses.Address,
    security: credentials.Security,
    welcome: handshake.Welcome,
    stream: envs.LocalStream,
  ):
    """Makes the agent, or raises `IncompatibleLearner`.

    `welcome` has `local`; `close` interrupts `stream`.
    """
    assert welcome.local is not None
    self._run = welcome.local
    self._stream = stream
    self._config = ml_collections.ConfigDict(self._run.config)
    try:
      self._global_env_id = np.array(self._run.global_env_id, np.int32)
      address = addresses.as_seen_from_actor(self._run.replay_address, learner)
    except (TypeError, ValueError, OverflowError) as e:
      raise IncompatibleLearner(str(e)) from e
    if not address.is_local and not security.insecure:
      raise IncompatibleLearner(
        f'Reverb at {address.text} takes unrolls in the clear, without TLS or '
        'a token; trust the network between with --insecure, or take '
        '--inference=central.'
      )
    self._address = address.text
    self._make_agent(jax.random.PRNGKey(welcome.seed))
    self._newest: tuple[int, agents.Params] = types.NO_VERSION, None
    self._store: reverb_store.ReverbStore | None = None
    # Returns the work so far.
    self._work: Callable[[], local_messages.Work] = local_messages.Work
    self._reported = local_messages.Work()
    # Set when parameters have arrived, and when a report is due.
    self._arrived, self._due = threading.Event(), threading.Event()
    self._threads = threads.ThreadGroup((replay.StoreClosed, envs.StreamClosed))
    self._threads.on_stop(stream.interrupt)
    self._threads.on_stop(self._interrupt_store)
    self._threads.on_stop(self._arrived.set)
    self._threads.on_stop(self._due.set)

  def _make_agent(self, key: jax.Array) -> None:
    self._device = jax.local_devices(backend='cpu')[0]
    run = self._run
    env_spec = types.EnvSpec(
      self._stream.spec, run.num_train_envs, run.num_eval_envs
    )
    try:
      allowed = agents.allowed(self._config) or {}
      settings.check(self._config, allowed, complete=False)
      self._agent = agents.load_agent(self._config, env_spec)
    except (ValueError, ImportError) as e:
      raise IncompatibleLearner(str(e)) from e
    self._shapes = self._agent.params_shapes()
    parameters = agents.parameter_specs(self._shapes)
    # Specs of the leaves that `take` takes.
    self.parameters = tuple(parameters.values())
    texts = handshake.spec_texts(parameters)
    if list(texts.items()) != list(run.parameters.items()):  # in order, too
      raise IncompatibleLearner(
        'the agent has other parameters at the actor than at the learner: '
        'install the same release, and the same agent, on both sides.'
      )
    self._output_spec = specs.output_spec(
      self._agent, self._stream.spec, self._shapes
    )
    self._device_step = device_step_lib.DeviceStep(
      self._agent,
      self._stream.spec,
      self._output_spec,
      self._device,
      self._stream.num_envs,
      key,
    )

  def start(self) -> None:
    self._threads.start('inference', self._act)

  def take(self, version: int, leaves: Sequence[np.ndarray]) -> None:
    """Takes the leaves of newer acting parameters."""
    params = jax.tree.unflatten(jax.tree.structure(self._shapes), leaves)
    # Here, so that inference need not wait for the copy.
    params = jax.block_until_ready(jax.device_put(params, self._device))
    self._newest = version, params
    self._arrived.set()

  def report(self) -> local_messages.Report:
    """Returns the progress since the last call.

    Raises what the thread raised, or `PeerLost` if Reverb is lost.
    """
    if (failure := self._threads.failure) is not None:
      error = failure.error
      # It may come back, or the learner may start another.
      if isinstance(error, errors.ServerLost):
        raise PeerLost(str(error)) from error
      raise error
    work = self._work()
    since = map(operator.sub, work, self._reported)
    self._reported = work
    return local_messages.Report(
      self._newest[0],
      local_messages.Work(*since),
      np.array(self._stream.take_episodes(), envs.EPISODE),
    )

  def wait(self) -> None:
    """Waits until a report is due: about an unroll, or a second."""
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

  def _interrupt_store(self) -> None:
    if self._store is not None:
      self._store.interrupt()

  # -- in the thread of inference ----------------------------------------------

  def _act(self) -> None:
    worker = self._open()
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
      self._stream.spec,
      agent.num_transitions(config.unroll_length),
      self._output_spec,
      specs.core_spec(agent),
    )
    width = table_configs.table_config(config).writer_width(
      run.block_width, self._stream.num_envs
    )
    self._store = store = self._connect(unroll_spec, width)
    assembler = assembler_lib.UnrollAssembler(
      store.table(table_configs.TABLE),
      self._global_env_id,
      agent.num_transitions(config.unroll_length),
      agent.overlap,
      width,
      assembler_lib.make_priorities(agent, unroll_spec, width, self._device),
      burn_in=None if config.replay.sampler == 'fifo' else agent.burn_in,
    )
    worker = worker_lib.InferenceWorker(
      stream=self._stream,
      device_step=self._device_step,
      sink=assembler,
      parameters=lambda: self._newest,
      global_env_id=self._global_env_id,
    )
    self._work = lambda: local_messages.Work(
      worker.counters.env_steps, assembler.waited, store.bytes_sent
    )
    return worker

  def _connect(
    self, unroll_spec: types.Unroll, width: int
  ) -> reverb_store.ReverbStore:
    """See `ReverbStore` for `width`."""
    address, config = self._address, self._config
    if not connection.answers(address, _ANSWER):
      raise errors.ServerLost(
        f'nothing answers at {address}, the Reverb server of the learner; let '
        'this host reach that port, or start `seedrl reverb_server` where all '
        'reach it and give the learner its --config.replay.address=host:port.'
      )
    table = table_configs.table_config(config)
    served = server_rules.server_rules(
      table, self._run.block_width, config.batch_size
    )
    try:
      location = server_location.ExternalServer(
        address, [served], config.replay.patience
      )
      return reverb_store.ReverbStore(
        [table], unroll_spec, width, location, self._agent.overlap
      )
    except errors.RequestRefused as e:
      raise IncompatibleLearner(str(e)) from e
