"""Compiles all programs of small runs, for simulated CPUs as the target."""

import functools

import jax
import jax.numpy as jnp
import pytest

from seedrl_jax.agents import base as agents
from seedrl_jax.configs import r2d2_cartpole, vtrace_atari, vtrace_cartpole
from seedrl_jax.lab.planning import bounds, hlo, programs, report, targets
from seedrl_jax.run import plan as plan_lib

_TARGET = targets.Target('v5e', (2, 2))


def _config(module, **changes):
  config = module.get_config()
  config.num_eval_envs = 0
  config.env.num_envs, config.batch_size = 4, 12
  config.unroll_length = 4
  for key, value in changes.items():
    section, _, name = key.partition('__')
    config[section][name] = value
  return config


def _plan(module, num_devices=4, **changes):
  config = _config(module, **changes)
  return plan_lib.make_plan(config, devices=jax.devices()[:num_devices])


def _compile(plan):
  return {c.name: c for c in programs.compile_all(plan)}


@functools.cache
def _cartpole(num_devices=4):
  """Returns a plan and what is compiled of it, for several tests."""
  plan = _plan(vtrace_cartpole, num_devices)
  return plan, list(programs.compile_all(plan))


def test_programs_of_a_run_with_a_queue():
  compiled = {c.name: c for c in _cartpole()[1]}
  assert list(compiled) == ['update', 'act 4', 'publish']
  update = compiled['update']
  # Two layers of 64 units for policy and value, forwards and twice backwards.
  steps, weights = 5 * 4, 4 * 64 + 64 * 64 + 64 * 3
  assert update.flops == pytest.approx(2 * 3 * steps * weights, rel=0.1)
  taken, meant = update.donated
  assert taken >= meant > 3 * 4 * weights
  params = 4 * (weights + 64 + 64 + 3)
  assert compiled['publish'].traffic.size == 2 * params
  assert compiled['act 4'].donated is None


def test_programs_of_a_run_with_a_replay_and_a_core():
  plan = _plan(r2d2_cartpole, actors__max_envs=4)
  compiled = _compile(plan)
  assert {'update', 'act 1', 'act 2', 'act 4', 'take core 4'} < set(compiled)
  assert 'initial priorities' in compiled
  taken, meant = compiled['act 4'].donated
  assert taken >= meant > 0


def test_pieces_of_an_update_count_as_often_as_they_are_called():
  (whole,) = (c for c in _cartpole(1)[1] if c.name == 'update')
  pieces = _compile(_plan(vtrace_cartpole, 1, learner__micro_batches=3))
  names = [name for name in pieces if name.startswith('update')]
  assert names == ['update: cut', 'update: accumulate', 'update: finish']
  assert pieces['update: accumulate'].calls == 3
  assert 3 * pieces['update: accumulate'].flops == whole.flops


def test_a_torso_works_in_chunks_on_tpus_only():
  config = _config(vtrace_atari, network__tpu_chunk=1)
  plan = plan_lib.make_plan(config, devices=jax.devices()[:1])
  update = next(iter(programs.list_programs(plan)))
  assert 'remat' not in str(jax.make_jaxpr(update.function)(*update.shapes))
  agent = agents.load_agent(config, plan.env_spec)
  _, batch, progress = update.shapes
  batch = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batch
  )
  key = jax.ShapeDtypeStruct((2,), jnp.uint32)
  jaxpr = jax.make_jaxpr(agent.update, axis_env=[(agents.AXIS, 1)])(
    agent.state_shapes(), batch, key, progress
  )
  assert 'remat' in str(jaxpr)


def test_ceilings_of_each_split_that_divides_the_batch():
  plan, compiled = _cartpole()
  device = _TARGET.device
  splits = bounds.splits(plan, compiled, device)
  assert [(s.inference, s.training) for s in splits] == [(3, 1), (2, 2), (1, 3)]
  assert [s.exact for s in splits] == [False, False, True]
  exact = splits[-1]
  by_name = {c.name: bounds.bound(c, device) for c in compiled}
  assert exact.updates == pytest.approx(1 / by_name['update'].seconds)
  assert exact.learning == pytest.approx(12 * 4 * exact.updates)
  assert exact.acting == pytest.approx(4 / by_name['act 4'].seconds)
  assert exact.steps == min(exact.learning, exact.acting)
  # Operations bind: a third of the devices needs as many for an update.
  assert splits[0].learning == pytest.approx(exact.learning)
  assert splits[0].acting == pytest.approx(3 * exact.acting)


@pytest.mark.parametrize(
  ('flops', 'flops32', 'size', 'operations', 'seconds', 'reason'),
  [
    # Half of the peak of bfloat16.
    (989_000_000, 989_000_000, 0, 1, 2e-6, 'FLOPs'),
    (989_000_000, 0, 3350, 0, 1e-6, 'FLOPs'),
    (0, 0, 3_350_000_000, 9, 1e-3, 'bytes'),
    # PPO's update of CartPole: many small operations.
    (900_000_000, 900_000_000, 10**8, 20_559, 20.559e-3, 'operations'),
  ],
)
def test_a_program_takes_as_long_as_its_scarcest_resource(
  flops, flops32, size, operations, seconds, reason
):
  traffic = hlo.Traffic(size, operations)
  compiled = programs.Compiled('update', 1, flops, flops32, traffic, 0, 0, None)
  bound = bounds.bound(compiled, targets.DEVICES['h100'])
  assert bound.seconds == pytest.approx(seconds)
  assert bound.reason == reason


def test_a_smaller_share_of_the_batch_takes_as_many_operations():
  bound = bounds.Bound(4.0, 6.0, 5.0)
  assert bound.of_share(0.5) == (2.0, 3.0, 5.0)
  assert bound.of_share(0.5).reason == 'operations'


def test_one_device_takes_turns():
  plan, compiled = _cartpole(1)
  (split,) = bounds.splits(plan, compiled, _TARGET.device)
  assert split.limit == 'both'
  assert 1 / split.steps == pytest.approx(1 / split.learning + 1 / split.acting)


def test_report_has_programs_and_splits_and_says_that_it_bounds(capsys):
  plan, compiled = _cartpole()
  report.print_all('vtrace', _TARGET, plan, compiled)
  printed = capsys.readouterr().out
  assert '| act 4 |' in printed
  assert '| 2:2 * |' in printed
  assert 'bounds from published peaks and an estimated time' in printed
