"""Searches a learning rate and an entropy cost of PPO with Optuna."""

import optuna

import seedrl_jax


def objective(trial: optuna.Trial) -> float:
  """Trains once and returns the mean return of the last 100 episodes."""

  step = 0

  def on_report(report: seedrl_jax.Report) -> None:
    nonlocal step
    # The pruner compares trials at equal steps, each of 10,000 frames.
    while step < report.env_frames // 10_000:
      step += 1
      trial.report(report.mean_return_100 or 0.0, step)
    if trial.should_prune():
      report.stop()

  summary = seedrl_jax.train(
    'ppo_cartpole',
    # Another study must not go on with these runs.
    f'runs/optuna/{trial.study.study_name}/{trial.number}',
    on_report,
    total_env_frames=1e5,
    log__every_seconds=0.2,
    optimizer__learning_rate=trial.suggest_float('rate', 1e-4, 1e-2, log=True),
    loss__entropy_cost=trial.suggest_float('entropy', 1e-4, 0.1, log=True),
  )
  if summary.status == 'stopped':
    raise optuna.TrialPruned
  return summary.mean_return_100 or 0.0


study = optuna.create_study(
  direction='maximize', pruner=optuna.pruners.MedianPruner(n_startup_trials=3)
)
study.optimize(objective, n_trials=10)
print('best:', study.best_params, study.best_value)
