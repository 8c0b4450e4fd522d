"""The documentation's pages and what stands in them."""

import pathlib
import re
from collections.abc import Iterator

from tests import runs

DOCS = runs.ROOT / 'docs'
EXAMPLES = DOCS / 'examples'
PAGES = sorted(
  path.relative_to(runs.ROOT)
  for pattern in ('README.md', 'docs/**/*.md', '.github/*.md', 'launch/**/*.md')
  for path in runs.ROOT.glob(pattern)
)
_FENCED = re.compile(r'^```(\w*)(?: title="(.*)")?\n((?:.*\n)*?)```$', re.M)


def text(page: pathlib.Path) -> str:
  return (runs.ROOT / page).read_text()


def prose(page: pathlib.Path) -> str:
  """Returns a page without its fenced blocks."""
  return _FENCED.sub('', text(page))


def blocks(page: pathlib.Path, language: str) -> Iterator[tuple[str, str]]:
  """Yields the title, '' if none, and text of the blocks in a language."""
  for name, title, block in _FENCED.findall(text(page)):
    if name == language:
      yield title, block
