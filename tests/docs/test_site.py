"""Tests that the site can be built and its made pages are fresh."""

import importlib.util
import os
import subprocess
import sys

import pytest

from tests import runs
from tests.docs import pages


def test_configuration_reference_is_fresh():
  path = pages.DOCS / 'write_configuration.py'
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  message = 'Renew it: python docs/write_configuration.py'
  assert module.page() == module.PAGE.read_text(), message


def test_site_builds_without_a_warning(tmp_path):
  pytest.importorskip('material')
  result = subprocess.run(
    [sys.executable, '-m', 'mkdocs', 'build', '--strict', '-d', tmp_path],
    cwd=runs.ROOT,
    env={**os.environ, 'NO_MKDOCS_2_WARNING': '1'},
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 0, result.stderr
  assert (tmp_path / 'configuration/index.html').exists()
