"""Writes notebooks/quickstart.md, the page of the notebook with its outputs.

Run it after you change or run the notebook.
"""

import base64
import json
import pathlib
from typing import Any

NOTEBOOK = pathlib.Path(__file__).with_name('notebooks') / 'quickstart.ipynb'
PAGE = NOTEBOOK.with_suffix('.md')


def page() -> tuple[str, dict[pathlib.Path, bytes]]:
  """Returns the page, and its pictures by their files."""
  cells = json.loads(NOTEBOOK.read_text())['cells']
  pictures: dict[pathlib.Path, bytes] = {}
  parts = []
  for cell in cells:
    text = ''.join(cell['source'])
    if cell['cell_type'] == 'markdown':
      parts.append(text)
      continue
    parts.append(f'```python\n{text}\n```')
    parts += [_output(x, pictures) for x in cell['outputs']]
  return '\n\n'.join(parts) + '\n', pictures


def _output(output: dict[str, Any], pictures: dict[pathlib.Path, bytes]) -> str:
  """Returns an output as Markdown; adds its picture to `pictures`."""
  data = output.get('data', {})
  if 'image/png' not in data:
    text = ''.join(output.get('text') or data['text/plain'])
    return f'```text\n{text.rstrip()}\n```'
  path = NOTEBOOK.with_name(f'{NOTEBOOK.stem}-{len(pictures) + 1}.png')
  pictures[path] = base64.b64decode(data['image/png'])
  return f'![Output of the cell]({path.name})'


if __name__ == '__main__':
  text, files = page()
  PAGE.write_text(text)
  for path, content in files.items():
    path.write_bytes(content)
