"""The examples of the documentation run exactly as they stand there."""

import pathlib
import re
import sys

import numpy as np
import pytest

import jaxemb
from jaxemb import config as config_lib

_DOCS = pathlib.Path(__file__).parents[1] / 'docs'
_EXAMPLES = {
  block.split('.py:')[0].removeprefix('# '): block
  for block in re.findall(
    r'^```python\n(# my_.*?)^```',
    (_DOCS / 'extending.md').read_text(),
    re.DOTALL | re.MULTILINE,
  )
}
_MORE = {
  'my_policy': {'mesh.data': 2},
  'my_model': {'strategy.name': 'sync'},
}


def test_every_kind_of_member_has_an_example():
  kinds = 'loss', 'model', 'optimizer', 'policy', 'table', 'source'
  assert set(_EXAMPLES) == {f'my_{kind}' for kind in kinds}
  for block in _EXAMPLES.values():
    assert len(block.splitlines()) <= 38


@pytest.mark.parametrize('name', _EXAMPLES)
def test_an_example_trains(name, tmp_path, monkeypatch):
  block = _EXAMPLES[name]
  (tmp_path / f'{name}.py').write_text(block)
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.setenv('JAXEMB_CACHE', str(tmp_path / 'cache'))
  comments = [x for x in block.splitlines() if x.startswith('#')]
  flags = dict(re.findall(r'--config\.([\w.]+)=(\S+)', ' '.join(comments)))
  known = config_lib.flat(config_lib.default())
  settings = {k: type(known[k])(v) for k, v in flags.items()}
  assert any(':' in value for value in flags.values())
  text = ['the king rules the land', 'the dog eats the meat'] * 300
  path = tmp_path / 'text.txt'
  path.write_text('\n'.join(text))
  vectors = jaxemb.train(
    path,
    dim=8,
    epochs=2,
    min_count=1,
    sample=0.0,
    settings=settings | _MORE.get(name, {'strategy.name': 'sync'}),
  )
  assert np.isfinite(vectors.vectors).all()
  assert vectors.vectors.std() > 0
  first = 'node0' if name == 'my_source' else 'the'
  assert first in vectors.key_to_index
  del sys.modules[name]
