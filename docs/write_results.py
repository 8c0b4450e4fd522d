"""Writes the tables of the pages, and README.md's figures of speed.

Run it after `add_results.py` and `write_search.py`,
whose tables are between <!--results--> and <!--/results-->. Between
<!--measured NAME--> and <!--/measured--> is one of

* the last table of measured/NAME.txt, the output of `seedrl benchmark …`;
* measured/NAME.csv, summed up if it is the scores.csv of `seedrl report`;
* `study`, from study.csv; `updates`, from measured/compile_*.txt, the outputs
  of `seedrl compile`; `speed`, from measured/peers_*.txt.
"""

import csv
import itertools
import operator
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from seedrl_jax.lab import tables
from seedrl_jax.lab.studies import results
from seedrl_jax.runtime import progress

# A row of results.csv; see add_results.py.
_Row = Mapping[str, str]

_DOCS = pathlib.Path(__file__).parent
# The agents of the tables, in their order: title and page.
_AGENTS = {
  'vtrace': ('V-trace (IMPALA)', 'agents/vtrace.md'),
  'a2c': ('A2C', 'agents/vtrace.md#a2c'),
  'ppo': ('PPO', 'agents/ppo.md'),
  'pqn': ('PQN', 'agents/pqn.md'),
  'r2d2': ('R2D2', 'agents/r2d2.md'),
  'r2d3': ('R2D3', 'agents/r2d2.md#learning-from-demonstrations-r2d3'),
  'apex': ('Ape-X DQN', 'agents/r2d2.md#variants'),
  'dqn': ('DQN', 'agents/r2d2.md#variants'),
  'sac': ('SAC', 'agents/sac.md'),
  'dyna_q': ('Dyna-Q', 'agents/dyna_q.md'),
  'a3c': ('A3C', 'asynchronous.md'),
  'gorila': ('GORILA', 'asynchronous.md'),
  'hogwild': ('Hogwild! DQN', 'asynchronous.md'),
}
_NUMBER = re.compile(r'-?\d+(\.\d+)?')
_MARKED = re.compile(r'(<!--results-->\n).*(<!--/results-->)', re.S)
_MEASURED = re.compile(
  r'(<!--measured (\w+)-->).*?(\n *<!--/measured-->)', re.S
)


def pages() -> Iterator[tuple[pathlib.Path, str]]:
  """Yields the pages and what they should be."""
  with (_DOCS / 'results.csv').open() as file:
    rows = list(csv.DictReader(file))
  rows.sort(key=lambda row: list(_AGENTS).index(row['agent']))
  texts = {
    _DOCS / 'results.md': _agent_tables(rows),
    _DOCS.parent / 'README.md': tables.lines(_readme_rows(rows)),
    _DOCS / 'agents' / 'vtrace.md': tables.lines(_search_rows()),
  }
  for path in (_DOCS.parent / 'README.md', *sorted(_DOCS.rglob('*.md'))):
    page = path.read_text()
    if path in texts:
      # Without blanks, README.md has fewer words.
      text = '\n'.join(['', *texts[path], '']).replace(' --- ', '---')
      page = _MARKED.sub(rf'\g<1>{text}\n\2', page)
    yield path, _MEASURED.sub(_measured, page)


def _measured(marked: re.Match[str]) -> str:
  """Returns a marked part anew, from the output that it names."""
  start, name, end = marked.groups()
  makes = {'speed': _speed, 'study': _study, 'updates': _updates}
  table = _DOCS / 'measured' / f'{name}.csv'
  if name in makes:
    text = makes[name]()
  elif table.exists():
    text = '\n'.join(['', *_csv_table(table), ''])
  else:
    text = _last_table(name)
  return f'{start}\n{text}{end}'


def _csv_table(path: pathlib.Path) -> Iterator[str]:
  """Returns the lines of a CSV file's table; of scores in short."""
  with path.open() as file:
    rows = list(csv.DictReader(file))
  if 'scaled_score' in rows[0]:
    return tables.lines(_score_rows(rows))
  return tables.lines(
    {key: _text(x) if _NUMBER.fullmatch(x) else x for key, x in row.items()}
    for row in rows
  )


def _score_rows(rows: Sequence[Mapping[str, str]]) -> Iterator[tables.Row]:
  """Yields a row for each task and algorithm of a report's scores.csv."""
  groups: dict[tuple[str, str], list[Mapping[str, str]]] = {}
  for row in rows:
    groups.setdefault((row['task'], row['algorithm']), []).append(row)
  agents = [(task, name.partition(',')[0]) for task, name in groups]
  for task, algorithm in sorted(groups, key=_natural):
    runs = groups[task, algorithm]
    agent = algorithm.partition(',')[0]
    # The agent alone, if that says which algorithm it is.
    is_clear = agents.count((task, agent)) == 1
    frames, seconds = (
      [float(row[name]) for row in runs]
      for name in (results.FRAMES, results.SECONDS)
    )
    largest = max(abs(float(row['score'])) for row in runs)
    digits = 0 if largest >= 100 else 1 if largest >= 10 else 2
    yield {
      'task': f'`{task}`',
      'algorithm': agent if is_clear else algorithm,
      'frames': progress.format_count(float(np.median(frames))),
      'return of each seed': ' / '.join(
        _text(f'{float(row["score"]):.{digits}f}') for row in runs
      ),
      'time': tables.duration(min(seconds), max(seconds)),
    }


def _natural(names: Sequence[str]) -> list[str | int]:
  """Returns a sorting key by which 2 comes before 16."""
  parts = re.split(r'(\d+)', '\n'.join(names))
  return [int(x) if x.isdecimal() else x for x in parts]


def _output(name: str) -> str:
  return (_DOCS / 'measured' / f'{name}.txt').read_text()


def _last_table(name: str) -> str:
  """Returns an output's last table, and how it was made."""
  output = _output(name)
  about = dict(re.findall(r'^(command|machine|versions): (.*)$', output, re.M))
  assert name.partition('_')[0] in about['command'], name
  table = re.findall(r'(?:^\|.*\|\n)+', output, re.M)[-1]
  flags = about['command'].partition(' ')[2]
  return (
    f'\n{table}\n`seedrl benchmark {flags}`; {about["machine"]}; '
    f'{about["versions"]}.\n'
  )


def _study() -> str:
  """Returns the medians of each system of the study."""
  with (_DOCS / 'study.csv').open() as file:
    runs = list(csv.DictReader(file))
  groups: dict[tuple[str, str], list[Mapping[str, str]]] = {}
  for run in runs:
    groups.setdefault((run['system'], run['workers']), []).append(run)
  columns = (
    'frames',
    'episodes',
    'seconds',
    'cpu_seconds',
    'updates',
    'staleness',
  )
  rows = (
    {'system': system, 'workers': workers, 'runs': str(len(group))}
    | {name.replace('_', ' '): _median(group, name) for name in columns}
    for (system, workers), group in groups.items()
  )
  return '\n'.join(['', *tables.lines(rows), ''])


def _median(rows: Sequence[Mapping[str, str]], name: str) -> str:
  median = float(np.median([float(row[name]) for row in rows]))
  return f'{median:,.2f}' if name == 'staleness' else f'{median:,.0f}'


def _updates() -> str:
  """Returns each configuration's update in the outputs of `seedrl compile`."""
  lines: list[str] = []
  for path in sorted((_DOCS / 'measured').glob('compile_*.txt')):
    header, rule, update, *_ = re.findall(r'^\|.*', path.read_text(), re.M)
    name = path.stem.removeprefix('compile_')
    lines = lines or [header, rule]
    lines.append(update.replace('| update', f'| `{name}`'))
  return '\n'.join(['', *lines, ''])


def _speed() -> str:
  """Returns README.md's sentences on speed."""
  baselines = _ratio('peers_cartpole', 'stable-baselines3')
  factory = _ratio('peers_cartpole', 'sample-factory')
  in_jax = _ratio('peers_gymnax', 'stable-baselines3')
  return (
    f'  On two CPU cores it trains {baselines} times as many CartPole steps '
    'per\n'
    f'  second as Stable-Baselines3 and {factory} times as many as Sample '
    'Factory\n'
    '  ([alternating runs](docs/benchmarks.md#other-libraries), same network). '
    'With\n  [environments in JAX](docs/device_environments.md) it is '
    f'{in_jax} times\n  Stable-Baselines3.'
  )


def _ratio(name: str, peer: str) -> str:
  """Returns the median ratio to a peer in an output of `benchmark peers`."""
  row = re.search(rf'^\|.*\| {peer}.*\|$', _output(name), re.M)
  assert row is not None, (name, peer)
  cells = [cell.strip() for cell in row[0].split('|')]
  return cells[6].partition(' ')[0]


def _agent_tables(rows: Sequence[_Row]) -> Iterator[str]:
  """Yields the lines of a table for each agent, with its notes."""
  for agent, group in itertools.groupby(rows, operator.itemgetter('agent')):
    title, page = _AGENTS[agent]
    notes: list[str] = []
    cells = [_cells(row, notes) for row in group]
    filled = [key for key in cells[0] if any(row[key] for row in cells)]
    yield from (f'### {title}', '', f'[About {title}]({page}).', '')
    yield from tables.lines({key: row[key] for key in filled} for row in cells)
    yield ''
    yield from (f'{i}. {note}' for i, note in enumerate(notes, 1))
    yield from [''] * bool(notes)


def _cells(row: _Row, notes: list[str]) -> tables.Row:
  """Returns a row's cells; adds its long texts to `notes`, from 1."""
  flags = row['flags'].replace('--config.', '')
  name = f'`{row["config"]}`' + f', `{flags}`' * bool(flags)
  seeds = f'{row["reached"]}/{row["seeds"]}' if row['reached'] else row['seeds']
  source = '; '.join(
    x for x in (row['source'], row['network'], row['protocol']) if x
  )
  texts = [f'Reference: {source}' * bool(source), row['remarks']]
  texts = [f'{text[0].upper()}{text[1:]}' for text in texts if text]
  notes += [text for text in texts if text not in notes]
  return {
    'task': row['environment'],
    'configuration': name,
    'frames': _frames([row]),
    'seeds': f'seed {row["seed"]}' if row['seed'] else seeds,
    'return': _with_error(row['return'], row['error']),
    'sampled': _with_error(row['sampled'], row['sampled_error']),
    'episodes': row['episodes'],
    'time': _time([row]),
    'reference': row['reference'],
    'notes': ', '.join(
      str(i) for i in sorted(notes.index(x) + 1 for x in texts)
    ),
  }


def _with_error(returns: str, error: str) -> str:
  """Returns mean ± standard error over episodes or, if known, over seeds."""
  parts = returns.split()
  if len(parts) < 2:
    text = _range(returns.split('..')) if returns else ''
    return f'{text} ± {_text(error, of=returns)}' if error else text
  values = [float(part) for part in parts]
  digits = len(parts[0].partition('.')[2])
  error = f'{np.std(values, ddof=1) / len(values) ** 0.5:.{digits}f}'
  mean = f'{np.mean(values):.{digits}f}'
  ends = _range([min(parts, key=float), max(parts, key=float)])
  return f'{_text(mean)} ± {_text(error)} ({ends})'


def _readme_rows(rows: Sequence[_Row]) -> Iterator[tables.Row]:
  """Yields the rows of README.md; the seeds of a task are one."""
  shown = [row for row in rows if row['readme']]
  last = ''
  for (agent, task), group in itertools.groupby(
    shown, lambda row: (row['agent'], row['readme'])
  ):
    runs = list(group)
    title, page = _AGENTS[agent]
    counts = [(row['reached'] or row['seeds'], row['seeds']) for row in runs]
    reached, seeds = (sum(map(int, x)) for x in zip(*counts, strict=True))
    yield {
      'agent': '' if agent == last else f'[{title}](docs/{page})',
      'task': task,
      'frames': _frames(runs),
      'return': f'{_returns(runs)}, {reached}/{seeds}',
      'reference': runs[0]['reference'] or '–',
      'time': _time(runs) or '–',
    }
    last = agent


def _search_rows() -> Iterator[tables.Row]:
  """Yields a row for each change; its games are side by side."""
  with (_DOCS / 'vtrace_search.csv').open() as file:
    rows = list(csv.DictReader(file))
  for change, group in itertools.groupby(rows, operator.itemgetter('change')):
    cells = {'change': change}
    for row in group:
      game = row['game']
      cells |= {
        f'{game}: dead': f'{float(row["dead_share"]):.2f}',
        f'{game}: `value_std`': f'{float(row["value_std"]):.2g}',
        f'{game}: return': _text(row['return']),
      }
    yield cells


def _returns(rows: Sequence[_Row]) -> str:
  """Returns the least to the greatest return, in whole numbers from 10 on."""
  values = sorted(
    (x for row in rows for x in re.split(r' |\.\.', row['return'])), key=float
  )
  return _range([
    f'{float(x):.0f}' if abs(float(x)) >= 10 else x
    for x in (values[0], values[-1])
  ])


def _range(ends: Sequence[str]) -> str:
  texts = list(dict.fromkeys(map(_text, ends)))
  return (' to ' if '−' in texts[0] else '–').join(texts)


def _text(number: str, of: str = '') -> str:
  """Returns a number as it is written, with commas and a real minus sign.

  From 1,000 on, it has no decimals, and no error `of` such a number has.
  """
  is_large = abs(float((of or number).partition('..')[0])) >= 1000
  digits = 0 if is_large else len(number.partition('.')[2])
  return f'{float(number):,.{digits}f}'.replace('-', '−')


def _ends(values: Sequence[str]) -> list[float]:
  """Returns the least and the greatest number; [] if there is none."""
  numbers = [float(x) for value in values if value for x in value.split('..')]
  return [min(numbers), max(numbers)] if numbers else []


def _frames(rows: Sequence[_Row]) -> str:
  ends = _ends([row['frames'] for row in rows])
  return '–'.join(dict.fromkeys(map(progress.format_count, ends)))


def _time(rows: Sequence[_Row]) -> str:
  ends = _ends([row['seconds'] for row in rows])
  return tables.duration(*ends) if ends else ''


if __name__ == '__main__':
  # Renders all pages before it writes one, so a missing file changes none.
  for file, content in list(pages()):
    file.write_text(content)
