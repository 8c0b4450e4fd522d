"""Returns of each task, in a run of several."""

from collections.abc import Sequence

from seedrl_jax.envs import atari
from seedrl_jax.runtime import report


class TaskReturns:
  """Collects the episodes of each task."""

  def __init__(self, tasks: Sequence[str], action_repeat: int):
    """Without tasks there is nothing to collect."""
    self._action_repeat = action_repeat
    self._windows = {
      'rollout': {task: report.EpisodeWindow() for task in tasks},
      'eval': {
        task: report.EpisodeWindow(size=report.EVAL_WINDOW) for task in tasks
      },
    }
    self._tasks = tuple(tasks)

  def add(
    self, is_training: bool, task: int, episode_return: float, length: int
  ) -> None:
    """Adds an episode of a task, given by its number."""
    if self._tasks:
      windows = self._windows['rollout' if is_training else 'eval']
      windows[self._tasks[task]].add(episode_return, length)

  def metrics(self) -> dict[str, float | None]:
    """Returns means of each task's last episodes, and the frames of all."""
    row: dict[str, float | None] = {}
    for group, windows in self._windows.items():
      for task, window in windows.items():
        row[f'{group}/return/{task}'] = window.mean_return()
        row[f'{group}/length_steps/{task}'] = window.mean_length()
        if group == 'rollout':
          row[f'{group}/frames/{task}'] = window.steps * self._action_repeat
      if self._tasks and all(map(atari.game, self._tasks)):
        # Once all tasks have one.
        means = self._means(group)
        is_complete = len(means) == len(self._tasks)
        mean = atari.capped_mean(means) if is_complete else None
        row[f'{group}/human_normalized'] = mean
    return row

  def _means(self, group: str) -> dict[str, float]:
    means = {
      task: window.mean_return()
      for task, window in self._windows[group].items()
    }
    return {task: mean for task, mean in means.items() if mean is not None}

  def summary(self) -> list[str]:
    """Returns a line for each task."""
    means = {group: self._means(group) for group in self._windows}
    lines = []
    for task in self._tasks:
      train, evaluation = (
        f'{means[group][task]:.4g}' if task in means[group] else '-'
        for group in ('rollout', 'eval')
      )
      lines.append(f'{task}: return {train} (eval {evaluation})')
    return lines
