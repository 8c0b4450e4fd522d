"""Searches a learning rate and an entropy cost of PPO with Optuna."""

import optuna

import seedrl_jax


def objective(trial: optuna.Trial) -> float:
  """Trains once and returns the mean return of the last 100 episodes."""

  def on_report(report: seedrl_jax.Report) -> None:
    if report.mean_return_100 is not None:
      trial.report(report.mean_return_100, report.env_frames)
      if trial.should_prune():
        report.stop()

  summary = seedrl_jax.train(
    'ppo_cartpole',
    f'runs/optuna/{trial.number}',
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
