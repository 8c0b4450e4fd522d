"""Tests that the site can be built and its made pages are fresh."""

import csv
import json
import re
import runpy
import shutil
import subprocess
import sys

import pytest

from tests import runs
from tests.docs import pages


def test_configuration_reference_and_stub_are_fresh():
  names = runpy.run_path(str(pages.DOCS / 'write_configuration.py'))
  message = 'Renew them: python docs/write_configuration.py'
  assert names['page']() == names['PAGE'].read_text(), message
  assert names['stub']() == names['STUB'].read_text(), message


def test_tables_of_results_are_fresh():
  names = runpy.run_path(str(pages.DOCS / 'write_results.py'))
  shown = set()
  for path, text in names['pages']():
    assert text == path.read_text(), 'Renew it: python docs/write_results.py'
    shown |= set(re.findall(r'<!--(?:measured )?(\w+)-->', text))
  outputs = {path.stem for path in (pages.DOCS / 'measured').iterdir()}
  updates = {name for name in outputs if name.startswith('compile_')}
  assert shown == outputs - updates | {'results', 'speed', 'study', 'updates'}


@pytest.mark.parametrize(
  ('values', 'cells'),
  [
    (
      {'return': '-1.50', 'error': '0.25', 'seed': '7', 'seconds': '75..115'},
      {'return': '−1.50 ± 0.25', 'seeds': 'seed 7', 'time': '75–115 s'},
    ),
    (
      {'return': '8002 6460 9178', 'reached': '3', 'seconds': '150..300'},
      {
        'return': '7,880 ± 787 (6,460–9,178)',
        'seeds': '3/3',
        'time': '2.5–5 min',
      },
    ),
    (
      {
        'return': '-84..-81',
        'frames': '5e5..2e6',
        'reference': '-80',
        'source': 'Zoo',
        'network': 'MLP',
        'remarks': 'loaded',
      },
      {
        'return': '−84 to −81',
        'frames': '500k–2M',
        'reference': '-80',
        'notes': '1, 3',
      },
    ),
    (
      {'return': '3028.4', 'error': '129.5', 'remarks': 'known'},
      {'return': '3,028 ± 130', 'notes': '2'},
    ),
  ],
)
def test_a_row_of_results_is_readable(values, cells):
  names = runpy.run_path(str(pages.DOCS / 'write_results.py'))
  with (pages.DOCS / 'results.csv').open() as file:
    empty = dict.fromkeys(next(csv.reader(file)), '')
  row = empty | {'seeds': '3', 'agent': 'ppo'} | values
  actual = names['_cells'](row, ['Reference: Zoo; MLP', 'Known'])
  assert {key: actual[key] for key in cells} == cells


def test_page_of_the_notebook_is_fresh():
  names = runpy.run_path(str(pages.DOCS / 'write_notebook.py'))
  text, pictures = names['page']()
  message = 'Renew it: python docs/write_notebook.py'
  assert text == names['PAGE'].read_text(), message
  assert pictures
  for path, content in pictures.items():
    assert path.read_bytes() == content, message


def test_site_builds_without_a_warning(tmp_path):
  # The site is built beside its configuration.
  shutil.copy(runs.ROOT / 'mkdocs.yml', tmp_path)
  shutil.copytree(pages.DOCS, tmp_path / 'docs')
  result = subprocess.run(
    [sys.executable, '-m', 'zensical', 'build', '--strict'],
    cwd=tmp_path,
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 0, result.stdout + result.stderr
  site = tmp_path / 'build/site'
  assert 'load_policy' in (site / 'api/index.html').read_text()
  index = json.loads((site / 'search.json').read_text())
  texts = [item['text'] + item['title'] for item in index['items']]
  for word in ('callback', 'normalis', 'resume', 'wandb', 'Stable-Baselines3'):
    assert any(word in text for text in texts), word
