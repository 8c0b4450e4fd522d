"""What takes a run's metrics; `log.writers` names functions that make one."""

from seedrl_jax.runtime import report

Row = report.Row
# Functions by the name of a writer, which for optional ones is also that of
# their package.
BUILT_IN = {
  'csv': f'{__package__}.text_logs:CsvLog',
  'tensorboard': f'{__package__}.event_log:EventLog',
  'jsonl': f'{__package__}.text_logs:JsonLog',
  'wandb': f'{__package__}.wandb_log:make',
  'mlflow': f'{__package__}.mlflow_log:make',
}


class Writer:
  """Takes a run's reports, one after another.

  A thread for this writer alone makes it and calls its methods.

  Attributes:
    description: line to print once it has begun; '' for none.
  """

  description = ''

  def roll_back(self, updates: int, frames: int) -> None:
    """Drops rows of more updates or frames than the run goes on from.

    Comes before the first row. Environments go on while a checkpoint is
    written, so a row of the same update may be ahead of it in frames.
    """

  def write(self, row: Row) -> None:
    """Takes one report."""
    raise NotImplementedError

  def close(self) -> None:
    """Ends the writing."""


def known(row: Row) -> dict[str, float]:
  """Returns a row without what is not known."""
  return {name: value for name, value in row.items() if value is not None}
