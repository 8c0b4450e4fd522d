"""Tests that the site can be built and its made pages are fresh."""

import os
import runpy
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
