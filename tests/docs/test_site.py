"""Tests that the site can be built and its made pages are fresh."""

import json
import runpy
import shutil
import subprocess
import sys

from tests import runs
from tests.docs import pages


def test_configuration_reference_and_stub_are_fresh():
  names = runpy.run_path(str(pages.DOCS / 'write_configuration.py'))
  message = 'Renew them: python docs/write_configuration.py'
  assert names['page']() == names['PAGE'].read_text(), message
  assert names['stub']() == names['STUB'].read_text(), message


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
