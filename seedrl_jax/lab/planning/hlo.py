"""The memory traffic of a compiled program, read from its optimised HLO.

XLA's own cost analysis counts the body of a loop once, counts what stays in a
TPU's on-chip memory, and gives nothing for a GPU. This counts, for each
instruction outside of fusions, its operands and results in the device's memory
as they lie there, padding included. A loop's body counts as often as it runs.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_SHAPE = re.compile(r'\b([a-z]+\d*(?:e\d\w*)?)\[([\d,]*)\](?:\{([^}]*)\})?')
_INSTRUCTION = re.compile(r'\s*(ROOT )?(%\S+) = (.*)')
_COMPUTATION = re.compile(r'(ENTRY )?(%\S+) \(.*\{$')
_CALLED = re.compile(r'\b(\w+)=\{?((?:%[\w.\-]+(?:, )?)+)')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')

# Instructions that move nothing, or that another one's count includes.
_FREE = {
  'parameter',
  'constant',
  'tuple',
  'get-tuple-element',
  'bitcast',
  'after-all',
  'partition-id',
  'replica-id',
  'opt-barrier',
  'domain',
}
_FREE_TARGETS = re.compile(
  r'custom_call_target="(AllocateBuffer|ConcatBitcast|Sharding)"'
)
_SLICES = {'slice', 'dynamic-slice', 'gather', 'slice-start'}


class Array(NamedTuple):
  """An array's place in memory.

  Attributes:
    size: bytes, with padding.
    on_chip: whether it is not in the device's main memory.
  """

  size: int
  on_chip: bool


class Instruction(NamedTuple):
  """A line of HLO; `operands` and `called` are names with their percent sign.

  Attributes:
    called: computations by attribute, as `body` of a loop.
  """

  name: str
  opcode: str
  result: list[Array]
  operands: list[str]
  called: Mapping[str, list[str]]
  text: str
  is_root: bool


Computation = dict[str, Instruction]


class Traffic(NamedTuple):
  """What a program moves between a device's memory and its cores.

  Attributes:
    size: bytes, with padding.
    operations: number of executed instructions that move anything.
  """

  size: int
  operations: int


def traffic(text: str) -> Traffic:
  """Returns the memory traffic of a module, as `compiled.as_text()` prints."""
  return _Counter(*_parse(text)).count()


def _parse(text: str) -> tuple[dict[str, Computation], str]:
  """Returns a module's computations, and the name of the entry."""
  computations: dict[str, Computation] = {}
  entry = current = ''
  for line in text.splitlines():
    if match := _COMPUTATION.match(line):
      current = match[2]
      computations[current] = {}
      entry = current if match[1] else entry
    elif match := _INSTRUCTION.match(line):
      instruction = _instruction(match)
      computations[current][instruction.name] = instruction
  return computations, entry


def _instruction(match: re.Match[str]) -> Instruction:
  rest = re.sub(r'/\*.*?\*/', '', match[3])
  # A tuple's shape is in parentheses, as the operands are.
  end = _closing(rest, 0) + 1 if rest.startswith('(') else rest.index(' ')
  shape, rest = rest[:end], rest[end:].lstrip()
  opcode, _, _ = rest.partition('(')
  close = _closing(rest, len(opcode))
  return Instruction(
    name=match[2],
    opcode=opcode,
    result=[_array(x) for x in _SHAPE.finditer(shape)],
    operands=re.findall(r'%[\w.\-]+', rest[len(opcode) : close]),
    called={
      name: re.findall(r'%[\w.\-]+', names)
      for name, names in _CALLED.findall(rest[close:])
    },
    text=rest,
    is_root=bool(match[1]),
  )


def _closing(text: str, start: int) -> int:
  """Returns the index of the parenthesis that closes the one at `start`."""
  depth = 0
  for i in range(start, len(text)):
    depth += {'(': 1, ')': -1}.get(text[i], 0)
    if not depth:
      return i
  raise ValueError(f'No parenthesis closes: {text}')


def _array(match: re.Match[str]) -> Array:
  kind, numbers, layout = match.groups()
  bits = 8 if kind == 'pred' else int((re.search(r'\d+', kind) or [0])[0])
  dims = [int(x) for x in numbers.split(',') if x]
  order, _, tiling = (layout or '').partition(':')
  padded = [dims[int(i)] for i in order.split(',') if i] if dims else []
  tile = re.match(r'T\(([\d,]+)\)', tiling)
  if tile:
    for i, size in enumerate(reversed(tile[1].split(','))):
      if i < len(padded):
        padded[i] = -(-padded[i] // int(size)) * int(size)
  size = math.prod(padded or dims) * bits // 8
  return Array(size, bool(re.search(r'S\([1-9]', tiling)))


class _Counter:
  """Counts the traffic of a module."""

  def __init__(self, computations: dict[str, Computation], entry: str):
    self._computations, self._entry = computations, entry
    self._size = self._operations = 0

  def count(self) -> Traffic:
    self._add_computation(self._entry, 1)
    return Traffic(self._size, self._operations)

  def _add_computation(self, name: str, times: int) -> None:
    inner = self._computations[name]
    for x in inner.values():
      if x.opcode == 'while':
        trips = times * self._trips(x)
        self._add_computation(x.called['body'][0], trips)
      elif x.opcode in ('call', 'conditional', 'async-start'):
        for called in (c for names in x.called.values() for c in names):
          self._add_computation(called, times)
      elif not _is_free(x):
        sizes = [a.size for a in self._touched(x, inner) if not a.on_chip]
        self._size += times * sum(sizes)
        self._operations += times

  def _trips(self, loop: Instruction) -> int:
    """Returns how often a loop's body runs; 1 if that is not known."""
    if known := _TRIPS.search(loop.text):
      return int(known[1])
    condition = self._computations[loop.called['condition'][0]]
    limits = [
      int(match[1])
      for x in condition.values()
      if (match := re.match(r'constant\((\d+)\)', x.text))
    ]
    return max(limits, default=1)

  def _touched(self, x: Instruction, inner: Computation) -> Iterator[Array]:
    """Yields the arrays that an instruction reads and writes."""
    operands = [inner[name] for name in x.operands if name in inner]
    if x.opcode == 'fusion':
      yield from self._touched_by_fusion(x, operands)
    elif x.opcode == 'copy-start':
      yield from (*operands[0].result[:1], x.result[0])
    elif x.opcode in _SLICES:
      # Of its source, only what the slice takes.
      result = x.result[1 if x.opcode == 'slice-start' else 0]
      yield result._replace(on_chip=operands[0].result[0].on_chip)
      yield result
    elif x.opcode in ('dynamic-update-slice', 'scatter'):
      update = operands[-1 if x.opcode == 'scatter' else 1].result[0]
      yield update
      yield update._replace(on_chip=x.result[0].on_chip)
    else:
      for operand in operands:
        yield from operand.result
      yield from x.result

  def _touched_by_fusion(
    self, fusion: Instruction, operands: list[Instruction]
  ) -> Iterator[Array]:
    body = self._computations[fusion.called['calls'][0]]
    root = next(x for x in body.values() if x.is_root)
    parts = root.operands if root.opcode == 'tuple' else [root.name]
    # A part may have several results, as a reduction.
    roots = [name for name in parts for _ in body[name].result]
    updated = set()  # parameters that are updated in place
    for result, name in zip(fusion.result, roots, strict=True):
      source = _origin(name, body)
      if source.opcode == 'dynamic-update-slice':
        updated.add(_origin(source.operands[0], body).name)
        result = (
          body[source.operands[1]].result[0]._replace(on_chip=result.on_chip)
        )
      yield result
    for number, x in _parameters(body).items():
      if x.name in updated:
        continue
      arrays = operands[number].result
      slices = self._slices_of(x, body)
      if slices is None:
        yield from arrays
      else:
        for part in slices:
          yield part._replace(on_chip=arrays[0].on_chip)

  def _slices_of(self, x: Instruction, body: Computation) -> list[Array] | None:
    """Returns the slices that a fusion takes of `x`; None if all of it."""
    if x.is_root:
      return None
    arrays: list[Array] = []
    for user in body.values():
      if x.name not in user.operands:
        continue
      if user.opcode in _SLICES and user.operands[0] == x.name:
        arrays.append(user.result[0])
        continue
      inner = None
      if user.opcode == 'bitcast':
        inner = self._slices_of(user, body)
      elif user.opcode == 'fusion':
        nested = self._computations[user.called['calls'][0]]
        parameter = _parameters(nested)[user.operands.index(x.name)]
        inner = self._slices_of(parameter, nested)
      if inner is None:
        return None
      arrays += inner
    return arrays


def _is_free(x: Instruction) -> bool:
  return (
    x.opcode in _FREE
    or x.opcode.endswith('-done')
    or bool(_FREE_TARGETS.search(x.text))
  )


def _parameters(body: Computation) -> dict[int, Instruction]:
  """Returns a computation's parameters by their numbers."""
  return {
    int(re.findall(r'\d+', x.text)[0]): x
    for x in body.values()
    if x.opcode == 'parameter'
  }


def _origin(name: str, body: Computation) -> Instruction:
  while body[name].opcode in ('bitcast', 'reshape', 'convert', 'copy'):
    name = body[name].operands[0]
  return body[name]
