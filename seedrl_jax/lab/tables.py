"""Tables in Markdown, and the figures in their cells."""

import statistics
from collections.abc import Iterable, Iterator, Sequence

# A table's row: cells by column.
Row = dict[str, str]


def lines(rows: Iterable[Row]) -> Iterator[str]:
  """Yields the lines of a table, each as soon as `rows` yields its row."""
  for i, row in enumerate(rows):
    if i == 0:
      yield _line(row)
      yield _line(['---'] * len(row))
    yield _line(row.values())


def _line(cells: Iterable[str]) -> str:
  return f'| {" | ".join(cells)} |'


def show(rows: Iterable[Row]) -> None:
  """Prints a table, each row as soon as `rows` yields it."""
  print()
  for line in lines(rows):
    print(line, flush=True)


def spread(figures: Sequence[float], digits: int = 0) -> str:
  """Returns 'median (min–max)'."""
  low, median, high = (
    f'{f(figures):,.{digits}f}' for f in (min, statistics.median, max)
  )
  return f'{median} ({low}–{high})'


def time_unit(seconds: float) -> tuple[float, str]:
  """Returns the unit for a time, in seconds, and its name."""
  if seconds >= 2 * 3600:
    return 3600.0, 'h'
  return (60.0, 'min') if seconds >= 2 * 60 else (1.0, 's')


def duration(low: float, high: float | None = None) -> str:
  """Returns a time such as 45 s, 12 min or 3.3 h, or a range: 2–4 min."""
  unit, name = time_unit(low)
  ends = [x / unit for x in dict.fromkeys((low, high)) if x is not None]
  texts = [f'{x:.{int(x < 10)}f}'.removesuffix('.0') for x in ends]
  return f'{"–".join(dict.fromkeys(texts))} {name}'
