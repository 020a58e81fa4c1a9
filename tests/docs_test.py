"""The documentation: its examples run as they stand, and names in it exist."""

import pathlib
import re
import sys

import numpy as np
import pytest

import jaxemb
from jaxemb import config as config_lib

_ROOT = pathlib.Path(__file__).parents[1]
_DOCS = _ROOT / 'docs'
_PAGES = sorted([_ROOT / 'README.md', *_DOCS.glob('*.md')])
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


@pytest.mark.parametrize('page', _PAGES, ids=lambda page: page.stem)
def test_settings_in_the_docs_exist(page):
  text = page.read_text()
  known = config_lib.flat(config_lib.default())
  assert set(re.findall(r'--config\.([a-z]+\.\w+)', text)) <= set(known)
  scripts = re.findall(r'(?:colab|configs|experiments)/\w+\.\w+', text)
  scripts += [f'experiments/{x}' for x in re.findall(r'bench_\w+\.py', text)]
  for script in scripts:
    assert (_ROOT / script).is_file(), script


@pytest.mark.parametrize('page', _PAGES, ids=lambda page: page.stem)
def test_links_in_the_docs_lead_somewhere(page):
  text = page.read_text()
  for link in re.findall(r'\]\(([^)\s]+)\)', text):
    name, _, anchor = link.partition('#')
    target = (page.parent / name).resolve() if name else page
    assert target.exists(), link
    if anchor:
      titles = re.findall(r'^#+ (.*)', target.read_text(), re.MULTILINE)
      slugs = [re.sub(r'[^\w -]', '', x.lower()) for x in titles]
      assert anchor in [x.replace(' ', '-') for x in slugs], link


def test_python_of_the_readme(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  readme = (_ROOT / 'README.md').read_text()
  train, orbax = re.findall(r'^```python\n(.*?)^```', readme, re.S | re.M)
  names = {}
  exec(train, names)
  sentences, run = names['sentences'], tmp_path / 'run'
  vectors = jaxemb.train(sentences, dim=8, epochs=1, workdir=run)
  folder = re.search("'(.*/orbax)'", orbax)[1]
  exec(orbax.replace(folder, str(run / 'export/orbax')), names)
  np.testing.assert_array_equal(names['arrays']['vectors'], vectors.vectors)
