"""Tests that links between files lead somewhere."""

import pathlib
import re

import pytest

from tests import runs
from tests.docs import pages

_LINK = re.compile(r'\]\(\s*([^)\s]+)')


def _anchors(page: pathlib.Path) -> set[str]:
  """Returns the anchors that GitHub gives to headings."""
  titles = re.findall(r'^#+ (.*)$', pages.prose(page), re.M)
  plain = [re.sub(r'[^\w\- ]', '', title.lower()) for title in titles]
  return {title.replace(' ', '-') for title in plain}


@pytest.mark.parametrize('page', pages.PAGES, ids=str)
def test_relative_links_lead_to_files_and_headings(page):
  for link in _LINK.findall(pages.prose(page)):
    if re.match(r'\w+:', link):
      continue
    name, _, anchor = link.partition('#')
    path = (runs.ROOT / page).parent / name if name else runs.ROOT / page
    assert path.exists(), link
    assert not anchor or anchor in _anchors(path), link
    # The site has nothing else.
    assert page.parts[0] != 'docs' or path.resolve().is_relative_to(
      pages.DOCS
    ), link


def test_readme_is_short_and_names_the_commands():
  text = pages.text('README.md')
  assert len(text.splitlines()) <= 200 and len(text.split()) <= 900
  assert './launch/local.sh ' in text and './launch/test.sh ' in text
