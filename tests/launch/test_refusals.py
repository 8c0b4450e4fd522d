"""Programs refuse a wrong command line in one sentence, and write nothing."""

import pytest

from tests import runs

_WORKDIR = '--workdir={}/run'
_R2D2 = '--config=r2d2_base'
_BENCHMARK = '--config=benchmark:pong_tiny'
_CASES = {
  'actor': [
    ([], '--learner is missing; give the address of the learner.'),
    (['--learner=a:1', '--groups=0'], '--groups=0: '),
    (['--learner=a:1'], '--learner=a:1: is on another machine, so '),
    (['--learner=a:1', 'x'], 'unexpected arguments: x'),
    (
      ['--learner=unix:/none/a.sock', '--patience=0.01'],
      'No learner at unix:/none/a.sock for 0.01 s (unix:/none/a.sock: ',
    ),
  ],
  'autotune': [
    (['now'], 'unexpected arguments: now'),
    (
      ['--config=nothing'],
      '--config=nothing: there is no configuration',
    ),
    (['--config.deterministic'], '--config.deterministic=True: '),
    (
      ['--config.actors.max_envs=4'],
      '--config.actors.max_envs=4: actors are other processes',
    ),
    (['--config.batch_size=0'], '--config.batch_size=0: give 1 to'),
    (['--config.env.num_envs=0'], '--config.env.num_envs=0: give'),
  ],
  'benchmark': [
    (
      [],
      'say what to measure: one of system, peers, startup, '
      'architectures, accelerator.',
    ),
    (['system', '--case=pong'], 'There is no case pong; take one of free, '),
    (['startup', '--case=pong'], 'update: train: --config=pong: there is no '),
    (
      ['peers', '--case=free'],
      '--case=free: peers has cartpole128, gymnax_cartpole, pong_shallow, ',
    ),
    (
      ['peers', '--peer=acme'],
      '--peer=acme: take one of stable-baselines3, sample-factory',
    ),
  ],
  'check_env': [
    (['--config.env.num_envs=-1'], '--config.env.num_envs=-1: '),
    (['--config.env.tasks=a,b'], '--config.env.tasks: names several'),
  ],
  'compile': [
    ([], '--target is missing; give one, as --target=v5e:2x4.'),
    (['--target=v5e'], '--target=v5e: shape of the grid of chips not'),
    (
      ['--target=v5e:2x2', '--config=nothing'],
      'there is no configuration nothing',
    ),
    (['--target=v5e:2x2', 'now'], 'unexpected arguments: now'),
  ],
  'evaluate': [
    ([], "--workdir is missing; name a run's work directory."),
    (['a', 'b'], 'unexpected arguments: a b'),
    (['a', '--workdir=b'], 'unexpected arguments: a'),
  ],
  'export': [([], "--workdir is missing; name a run's work directory.")],
  'list': [
    (['envs', 'nothing'], 'list: no envs match nothing.'),
  ],
  'plot': [
    (['--x=steps'], '--x=steps: value should be one of <frames|time|updates>'),
    (['--smooth=0'], '--smooth=0: 0 is not a positive integer'),
    ([], 'plot: name runs, or folders above them.'),
  ],
  'record': [
    (['--out={}/x'], '--config is missing; name a file'),
    ([_R2D2, '--policy=a:b'], '--out is missing; name a folder to write'),
    ([_R2D2, '--out={}/x'], 'Give either --teacher_workdir'),
    (
      [_R2D2, '--out={}/x', '--policy=tests.nothing:b'],
      'no module tests.nothing,',
    ),
    (
      [_BENCHMARK, '--config.sed=1'],
      '--config.sed: benchmark:pong_tiny has no',
    ),
  ],
  'report': [([], 'report: name runs, or folders above them.')],
  'reverb_server': [
    (['--reverb_python=/no/such'], '--reverb_python=/no/such: '),
    (['--reverb_python=/no/such', '--check'], '--reverb_python=/no/such: '),
    ([_BENCHMARK, '--config.seed=x'], '--config.seed=x: inv'),
  ],
  'sweep': [
    ([], '--workdir is missing; name a folder for the runs.'),
    (['--workdir=gs://x'], '--workdir=gs://x is a URL; '),
    ([_WORKDIR, '--set=batch_size=8,8'], 'two runs would be the same; give '),
    ([_WORKDIR, '--config=r2d2_catch,r2d2_catch'], 'would be the same; give '),
    ([_WORKDIR, '--set=batch_size=8,0'], '--config.batch_size=0: give 1 to 1,'),
    ([_WORKDIR, '--set=batch_size=x'], '--config.batch_size=x: '),
    ([_WORKDIR, '--set=batchsize=8'], 'nearest is --config.batch_size.'),
    ([_WORKDIR, '--config.sed=8'], 'nearest is --config.seed.'),
    ([_WORKDIR, '--index=1'], '--index=1: the runs are 0 to 0.'),
  ],
  'train': [
    ([], '--workdir is missing'),
    (['runs/x'], 'unexpected arguments: runs/x; name a configuration by --c'),
    (['--total_timesteps=9'], 'did you mean --config.total_env_frames=9?'),
    ([_WORKDIR, '--config.env.num_env=3'], 'nearest is --config.env.num_envs.'),
    (
      [_WORKDIR, '--wrkdir=x'],
      "Unknown command line flag 'wrkdir'. Did you mean: workdir",
    ),
    (['--seed=3'], "flag 'seed'; did you mean --config.seed=3?"),
    (['--env-id=Pong-v5'], 'did you mean --config.env.id=Pong-v5?'),
    (['--env=Pong-v5'], 'did you mean --config.env.id=Pong-v5?'),
    (
      ['--learning_rate=1e-3'],
      'did you mean --config.optimizer.learning_rate=1e-3?',
    ),
    (
      [_WORKDIR, '--config.batch_size=1.5e0'],
      '--config.batch_size=1.5e0: invalid literal',
    ),
    # A whole number, and too many.
    ([_WORKDIR, '--config.batch_size=1e9'], 'batch_size=1000000000: give 1 to'),
    ([_WORKDIR, 'surplus'], 'unexpected arguments: surplus'),
    (
      [_WORKDIR, '--init_optimizer'],
      '--init_optimizer: there is no run to take the optimiser of; give',
    ),
    (
      [
        _WORKDIR,
        '--config.num_eval_envs=0',
        '--config.checkpoint.keep_best=True',
      ],
      '--config.checkpoint.keep_best=True: needs evaluation; give',
    ),
    (
      [_WORKDIR, '--config.env.id=Pendulum-v1'],
      'of Pendulum-v1 are continuous; take',
    ),
    (
      [_WORKDIR, '--config.topology.inference_to_training=x'],
      'write it as 1:3.',
    ),
    (
      [_WORKDIR, '--config.env.options.x=1'],
      '--config.env.options.x: give',
    ),
  ],
}


@pytest.mark.parametrize(
  ('program', 'flags', 'sentence'),
  [(program, *case) for program, cases in _CASES.items() for case in cases],
)
def test_refuses_in_one_sentence(program, flags, sentence, tmp_path):
  refusal = runs.refusal(program, *(flag.format(tmp_path) for flag in flags))
  assert refusal.startswith(f'{program}: ') and sentence in refusal
  assert not list(tmp_path.iterdir())
