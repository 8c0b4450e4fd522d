"""Draws images/architecture.png: `python docs/draw_architecture.py`."""

import pathlib

from matplotlib import figure as mpl_figure
from matplotlib import patches

_BLUE, _ORANGE, _GREY = '#006ba4', '#c85200', '#4a5565'
# Left edge, bottom, width, height, colour, fill, dashes, title, text.
_BOXES = (
  (0, 2.7, 16.6, 4.3, _BLUE, '#f2f6fa', '-', '', ''),
  (0.4, 3.1, 2.9, 2, _GREY, 'w', '-', 'environments', 'EnvPool, C++ threads'),
  (4.8, 3.1, 3.2, 2, _BLUE, 'w', '-', 'inference cores', 'act in large batches,\nassemble unrolls'),  # noqa: E501
  (9.4, 3.1, 2.6, 2, _GREY, 'w', '-', 'store', 'queue or replay,\nhere or in Reverb'),  # noqa: E501
  (13.5, 3.1, 2.7, 2, _BLUE, 'w', '-', 'training cores', 'prefetch, loss,\ngradient, optimiser'),  # noqa: E501
  (0.4, 0.2, 2.9, 1.8, _GREY, 'w', '--', 'remote actors', 'environments of\nother processes'),  # noqa: E501
)  # fmt: skip
# From, to, colour, path, place of the label, label.
_ARROWS = (
  ((3.3, 4.5), (4.8, 4.5), _GREY, 'arc3', (4.05, 4.65), 'steps'),
  ((4.8, 3.7), (3.3, 3.7), _GREY, 'arc3', (4.05, 3.3), 'actions'),
  ((8, 4.1), (9.4, 4.1), _GREY, 'arc3', (8.7, 4.25), 'unrolls'),
  ((12, 4.5), (13.5, 4.5), _GREY, 'arc3', (12.75, 4.65), 'batches'),
  ((13.5, 3.7), (12, 3.7), _GREY, 'arc3', (12.75, 3.3), 'priorities'),
  ((14.8, 5.1), (6.4, 5.1), _ORANGE, 'bar,fraction=0.09', (10.6, 6), 'new parameters, from device to device'),  # noqa: E501
  ((3.3, 1.5), (5.8, 3.1), _GREY, 'angle,angleA=0,angleB=90', (4.5, 1.62), 'steps, over gRPC'),  # noqa: E501
  ((7, 3.1), (3.3, 0.7), _GREY, 'angle,angleA=90,angleB=0', (5.2, 0.3), 'actions'),  # noqa: E501
)  # fmt: skip


def main() -> None:
  """Writes the picture."""
  figure = mpl_figure.Figure(figsize=(9.2, 4.2), layout='constrained')
  axes = figure.add_subplot(xlim=(-0.1, 16.7), ylim=(0, 7.1))
  axes.set_axis_off()
  axes.text(0.3, 6.55, 'learner, one process with all devices', color=_BLUE)
  for x, y, width, height, color, fill, dashes, title, text in _BOXES:
    box = patches.FancyBboxPatch((x, y), width, height, 'round,pad=0')
    box.set(fc=fill, ec=color, ls=dashes, lw=1.6)
    axes.add_patch(box)
    place = {'ha': 'center', 'va': 'center'}
    axes.text(x + width / 2, y + height - 0.45, title, weight='bold', **place)
    axes.text(x + width / 2, y + height / 2 - 0.3, text, fontsize=8.5, **place)
  for start, end, color, path, place, label in _ARROWS:
    look = {'arrowstyle': '-|>', 'color': color, 'lw': 1.6}
    look |= {'connectionstyle': path, 'shrinkA': 0, 'shrinkB': 0}
    axes.annotate('', end, start, arrowprops=look)
    axes.text(*place, label, ha='center', color=color, fontsize=8.5)
  figure.savefig(
    pathlib.Path(__file__).parent / 'images/architecture.png', dpi=150
  )


if __name__ == '__main__':
  main()
