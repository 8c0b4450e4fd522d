"""Describes a configuration for --help: keys, defaults and source comments."""

import ast
import io
import pathlib
import shlex
import shutil
import sys
import textwrap
import tokenize
import types
from collections.abc import Iterable, Iterator
from typing import Any

import ml_collections


def describe(
  config: ml_collections.ConfigDict, path: pathlib.Path, width: int = 0
) -> str:
  """Returns the help on a configuration, without overrides, by section.

  Args:
    path: its file.
    width: columns of text; 0: the terminal's.
  """
  width = width or shutil.get_terminal_size().columns
  said = comments(path)
  single, sections = [], []
  for name, value in _in_order(config, '', said):
    if not isinstance(value, ml_collections.ConfigDict):
      single += _entry(name, value, said, width)
      continue
    title = f'{name}: {said[name]}' if said.get(name) else name
    sections += ['', *_wrap(title, '', width)]
    for key, inner in _in_order(value, f'{name}.', said):
      sections += _entry(f'{name}.{key}', inner, said, width)
  title = f'The configuration {path.stem}, which --config.KEY=VALUE changes:'
  return '\n'.join(['', title, '', *single, *sections])


def _in_order(
  section: ml_collections.ConfigDict, prefix: str, said: Iterable[str]
) -> list[tuple[str, Any]]:
  """Returns names and values in source order, others last."""
  order = {key: i for i, key in enumerate(said)}
  return sorted(
    section.items(), key=lambda x: order.get(prefix + x[0], len(order))
  )


def _entry(key: str, value: Any, said: dict[str, str], width: int) -> list[str]:
  given = ' (not set)'
  if value is not None:
    text = str(dict(value) if hasattr(value, 'items') else value)
    given = f'="{text}"' if "'" in text else f'={shlex.quote(text)}'
  return [f'  --config.{key}{given}', *_wrap(said.get(key, ''), ' ' * 6, width)]


def _wrap(text: str, indent: str, width: int) -> list[str]:
  return textwrap.wrap(
    text, width, initial_indent=indent, subsequent_indent=indent
  )


def comments(path: pathlib.Path) -> dict[str, str]:
  """Returns the comment of each key and section in a source, '' if none.

  A key's comment is above it or at its end; a section's is the docstring of the
  function that makes it. A file that remakes a section replaces its comments; a
  comment on a changed value counts only if the key had none. The file must be
  loaded and have get_config() or set_defaults(config).
  """
  source = path.read_text()
  tree = ast.parse(source)
  found: dict[str, str] = {}
  for base in _bases(tree):
    said = comments(base)
    found |= {k: x for k, x in said.items() if x or k not in found}
  text = _Comments(source)
  functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
  maker = functions.get('get_config') or functions.get('set_defaults')
  for node in ast.walk(maker or tree):
    if not isinstance(node, ast.Assign):
      continue
    key = ast.unparse(node.targets[0]).removeprefix('config.')
    maker = functions.get(getattr(getattr(node.value, 'func', None), 'id', ''))
    if maker is None or key == 'config':
      found[key] = found.get(key) or text.of(node)
      continue
    found = {k: x for k, x in found.items() if not k.startswith(f'{key}.')}
    found[key] = ast.get_docstring(maker) or ''
    found |= {f'{key}.{name}': text.of(n) for name, n in _items(maker)}
  return found


def _bases(tree: ast.Module) -> Iterator[pathlib.Path]:
  """Yields the files of imported configuration modules."""
  imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
  for node in imports:
    for alias in node.names:
      module = sys.modules.get(f'{node.module}.{alias.name}')
      if module and module.__file__ and _has_keys(module):
        yield pathlib.Path(module.__file__)


def _has_keys(module: types.ModuleType) -> bool:
  """Returns whether a module is a configuration, or an agent's part of one."""
  return hasattr(module, 'get_config') or hasattr(module, 'set_defaults')


def _items(maker: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
  """Yields keys and values of the dict that a function returns."""
  literal = next((n for n in ast.walk(maker) if isinstance(n, ast.Dict)), None)
  if literal is not None:
    for key, value in zip(literal.keys, literal.values, strict=True):
      if isinstance(key, ast.Constant):
        yield str(key.value), value


class _Comments:
  """A source's comments by line."""

  def __init__(self, source: str):
    self._alone: dict[int, str] = {}
    self._behind: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
      if token.type == tokenize.COMMENT:
        is_alone = token.line.lstrip().startswith('#')
        lines = self._alone if is_alone else self._behind
        lines[token.start[0]] = token.string.lstrip('# ')

  def of(self, node: ast.stmt | ast.expr) -> str:
    first = node.lineno
    while first - 1 in self._alone:
      first -= 1
    lines = [self._alone[i] for i in range(first, node.lineno)]
    lines.append(self._behind.get(node.end_lineno or node.lineno, ''))
    return ' '.join(filter(None, lines))
