"""Returns of each task, in a run of several."""

from collections.abc import Sequence

from seedrl_jax.envs import atari
from seedrl_jax.runtime import report


class TaskReturns:
  """Collects the episodes of each task."""

  def __init__(self, tasks: Sequence[str], action_repeat: int):
    """Without tasks there is nothing to collect."""
    self._tasks = tasks
    self._action_repeat = action_repeat
    sizes = {'rollout': report.WINDOW, 'eval': report.EVAL_WINDOW}
    self._windows = {
      group: {task: report.EpisodeWindow(size=size) for task in tasks}
      for group, size in sizes.items()
    }

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
        means = {task: window.mean_return() for task, window in windows.items()}
        known = {task: x for task, x in means.items() if x is not None}
        # Once all tasks have one.
        mean = atari.capped_mean(known) if len(known) == len(means) else None
        row[f'{group}/human_normalized'] = mean
    return row

  def summary(self) -> list[str]:
    """Returns a line for each task."""

    def text(group: str, task: str) -> str:
      mean = self._windows[group][task].mean_return()
      return '-' if mean is None else f'{mean:.4g}'

    return [
      f'{task}: return {text("rollout", task)} (eval {text("eval", task)})'
      for task in self._tasks
    ]
