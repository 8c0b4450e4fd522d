"""Tests how targets are named, and what is said if a compiler is missing."""

import importlib.util

import jax
import pytest

from seedrl_jax.lab.planning import targets


@pytest.mark.parametrize(
  ('text', 'shape', 'name'),
  [
    ('v5e:2x4', (2, 4), 'v5e:2x4'),
    ('v4:2x2x2', (2, 2, 2), 'v4:2x2x2'),
    ('v5p:2x2x1', (2, 2, 1), 'v5p:2x2x1'),
    ('v6e:2x4', (2, 4), 'v6e:2x4'),
    ('h100', (1,), 'h100:1'),
    ('a100:8', (8,), 'a100:8'),
  ],
)
def test_parse(text, shape, name):
  target = targets.parse(text)
  assert target.shape == shape
  assert str(target) == name


@pytest.mark.parametrize(
  ('text', 'sentence'),
  [
    ('v9', 'no such device; take one of v4, v5e'),
    ('v5e', 'write it as v5e:2x2'),
    ('v5e:2x2x1', 'write it as v5e:2x2'),
    ('v5p:2x2', 'write it as v5p:2x2x1'),
    ('v5e:0x2', 'write it as v5e:2x2'),
    ('h200:2x2', 'number of GPUs .*write it as h200:8'),
  ],
)
def test_parse_refuses(text, sentence):
  with pytest.raises(ValueError, match=f'--target={text}: .*{sentence}'):
    targets.parse(text)


@pytest.mark.parametrize(
  ('text', 'extra'),
  [('v5e:2x2', 'tpu'), ('h100', 'cuda12'), ('h100', 'cuda13')],
)
def test_missing_compiler_is_named_with_its_command(monkeypatch, text, extra):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(ValueError, match=rf"pip install -e '\.\[{extra}\]'"):
    targets.configure([targets.parse(text)])


@pytest.mark.parametrize('cuda', ['cuda12', 'cuda13'])
def test_gpus_take_the_compiler_that_there_is(monkeypatch, cuda):
  monkeypatch.setattr(
    importlib.util, 'find_spec', lambda name: name == f'jax_{cuda}_plugin'
  )
  targets.configure([targets.parse('h100')])


def test_float32_products_have_their_own_peak():
  # JAX's default precision: TF32, and a pass of bfloat16.
  h100, v5e = targets.DEVICES['h100'], targets.DEVICES['v5e']
  assert h100.flops32 == 494.5e12
  assert v5e.flops32 == v5e.flops


@pytest.mark.slow
def test_devices_of_every_kind_of_tpu_are_of_one_host():
  pytest.importorskip('libtpu')
  counts = {'v4:2x2x1': 4, 'v5e:2x4': 8, 'v5p:2x2x1': 4, 'v6e:2x2': 4}
  wanted = [targets.parse(text) for text in counts]
  targets.configure(wanted)
  for target in wanted:
    devices = targets.devices(target)
    assert len(devices) == counts[str(target)]
    assert {d.process_index for d in devices} == {0}
  assert jax.default_backend() == 'cpu'
