"""Tests memory traffic of HLO written by hand and of a compiled function."""

import jax
import jax.numpy as jnp
import pytest

from seedrl_jax.lab.planning import hlo

_F32 = 4
_MODULE = """HloModule test

%body (x: (s32[], f32[6,8])) -> (s32[], f32[6,8]) {{
  %x = (s32[], f32[6,8]{{1,0}}) parameter(0)
  %i = s32[] get-tuple-element(%x), index=0
  %a = f32[6,8]{{1,0}} get-tuple-element(%x), index=1
  %n = f32[6,8]{{1,0}} negate(%a)
  ROOT %t = (s32[], f32[6,8]{{1,0}}) tuple(%i, %n)
}}

%condition (x.1: (s32[], f32[6,8])) -> pred[] {{
  %x.1 = (s32[], f32[6,8]{{1,0}}) parameter(0)
  %i.1 = s32[] get-tuple-element(%x.1), index=0
  %limit = s32[] constant(5)
  ROOT %less = pred[] compare(%i.1, %limit), direction=LT
}}

%inner (p.0: f32[6,8], p.1: s32[]) -> f32[1,8] {{
  %p.0 = f32[6,8]{{1,0}} parameter(0)
  %p.1 = s32[] parameter(1)
  ROOT %cut = f32[1,8]{{1,0}} dynamic-slice(%p.0, %p.1, %p.1)
}}

%cutting (q.0: f32[6,8], q.1: s32[]) -> f32[1,8] {{
  %q.0 = f32[6,8]{{1,0}} parameter(0)
  %q.1 = s32[] parameter(1)
  %row = f32[1,8]{{1,0}} fusion(%q.0, %q.1), kind=kLoop, calls=%inner
  ROOT %double = f32[1,8]{{1,0}} add(%row, %row)
}}

%writing (r.0: f32[6,8], r.1: f32[1,8], r.2: s32[]) -> f32[6,8] {{
  %r.0 = f32[6,8]{{1,0}} parameter(0)
  %r.1 = f32[1,8]{{1,0}} parameter(1)
  %r.2 = s32[] parameter(2)
  ROOT %put = f32[6,8]{{1,0}} dynamic-update-slice(%r.0, %r.1, %r.2, %r.2)
}}

%reducing (v.0: f32[6,8]) -> (f32[6], f32[6], f32[8]) {{
  %v.0 = f32[6,8]{{1,0}} parameter(0)
  %both = (f32[6]{{0}}, f32[6]{{0}}) reduce(%v.0, %v.0), dimensions={{1}}
  %first = f32[8]{{0}} slice(%v.0), slice={{[0:1],[0:8]}}
  ROOT %t.1 = ((f32[6]{{0}}, f32[6]{{0}}), f32[8]{{0}}) tuple(%both, %first)
}}

ENTRY %main (m: f32[6,8], k: s32[]) -> f32[6,8] {{
  %m = f32[6,8]{{1,0}} parameter(0)
  %k = s32[] parameter(1)
{lines}
}}
"""


def _traffic(lines):
  return hlo.traffic(_MODULE.format(lines=lines))


@pytest.mark.parametrize(
  ('lines', 'size'),
  [
    ('  ROOT %r = f32[6,8]{1,0} negate(%m)', 2 * 48 * _F32),
    # Rows padded to 8 and columns to 128, each of two bytes.
    ('  ROOT %r = bf16[6,8]{1,0:T(8,128)(2,1)} iota()', 8 * 128 * 2),
    # The first axis is the innermost.
    ('  ROOT %r = f32[6,8]{0,1:T(8,128)} iota()', 8 * 128 * _F32),
    # In memory of the chip.
    ('  ROOT %r = f32[6,8]{1,0:T(8,128)S(1)} iota()', 0),
    ('  ROOT %r = pred[6,8]{1,0} iota()', 48),
    ('  ROOT %r = f32[2,8]{1,0} slice(%m), slice={[0:2],[0:8]}', 128),
    # Of its source, a copy reads only what it writes elsewhere.
    (
      '  %c = (f32[6,8]{1,0:S(1)}, f32[6,8]{1,0}, u32[]) copy-start(%m)\n'
      '  ROOT %r = f32[6,8]{1,0:S(1)} copy-done(%c)',
      48 * _F32,
    ),
    # A row, through two fusions, with its index; and the result.
    (
      '  ROOT %r = f32[1,8]{1,0} fusion(%m, %k), kind=kLoop, calls=%cutting',
      2 * 8 * _F32 + 4,
    ),
    # A row in place, which is read elsewhere.
    (
      '  %row.1 = f32[1,8]{1,0:S(1)} iota()\n'
      '  ROOT %r = f32[6,8]{1,0} fusion(%m, %row.1, %k), kind=kLoop, '
      'calls=%writing',
      8 * _F32 + 4,
    ),
    # A part of the results may have several arrays.
    (
      '  ROOT %r = ((f32[6]{0}, f32[6]{0}), f32[8]{0}) fusion(%m), '
      'kind=kLoop, calls=%reducing',
      (48 + 6 + 6 + 8) * _F32,
    ),
    (
      '  ROOT %r = (s32[], f32[6,8]{1,0}) while(%m), condition=%condition, '
      'body=%body',
      5 * 2 * 48 * _F32,
    ),
    (
      '  ROOT %r = (s32[], f32[6,8]{1,0}) while(%m), condition=%condition, '
      'body=%body, backend_config={"known_trip_count":{"n":"3"}}',
      3 * 2 * 48 * _F32,
    ),
  ],
)
def test_traffic(lines, size):
  assert _traffic(lines).size == size


def test_an_operation_in_a_loop_counts_as_often_as_it_runs():
  traffic = _traffic(
    '  %c = f32[6,8]{0,1} copy(%m)\n'
    '  ROOT %r = (s32[], f32[6,8]{1,0}) while(%c), condition=%condition, '
    'body=%body'
  )
  assert traffic.operations == 6


def test_a_compiled_function_reads_its_arguments_and_writes_its_result():
  def function(x):
    return jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=9)[0]

  x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
  text = jax.jit(function).lower(x).compile().as_text()
  # The loop's counter, and copies of its first and last state, are small.
  assert hlo.traffic(text).size == pytest.approx(9 * 2 * 64**2 * _F32, rel=0.3)
