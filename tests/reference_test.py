"""The reference agrees with the code: names, defaults, generated pages."""

import importlib.util
import inspect
import pathlib
import re

import pytest

import jaxemb
from jaxemb import config as config_lib
from jaxemb import missing_names

_ROOT = pathlib.Path(__file__).parents[1]
# Arguments of `jaxemb.train` that are settings.
_ARGUMENTS = {
  'dim': 'model.dim',
  'window': 'model.window',
  'negatives': 'model.negatives',
  'model': 'model.name',
  'min_count': 'data.min_count',
  'sample': 'data.sample',
  'epochs': 'train.epochs',
  'seed': 'seed',
}
# Methods and classes of gensim, beside arguments, that a setting replaces.
_METHODS = {'Phrases', 'build_vocab_from_freq', 'intersect_word2vec_format'}


@pytest.fixture(scope='module')
def hooks():
  pytest.importorskip('mkdocs', reason="needs the extra 'docs'")
  spec = importlib.util.spec_from_file_location(
    'docs_hooks', _ROOT / 'docs/hooks.py'
  )
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_flags_stay_on_one_line(hooks):
  html = hooks.on_page_content('<p><code>--seed</code> <code>king</code></p>')
  assert html.count('nowrap') == 1 and html.endswith(' <code>king</code></p>')


def _setting_of(name):
  """Returns the setting that `jaxemb.train` names for an argument, or ''."""
  if name in inspect.signature(jaxemb.train).parameters:
    return _ARGUMENTS.get(name, '')
  instead = missing_names.OF_TRAIN.get(name, '')
  if instead == 'the first argument':
    return 'data.path'
  if match := re.match(r"settings=\{'([\w.]+)'", instead):
    return match[1]
  match = re.match(r'(\w+)=', instead)
  return _ARGUMENTS.get(match[1], '') if match else ''


def test_settings_page_and_errors_translate_the_same_names(hooks):
  documented = {}
  for row in hooks.other_names():
    for names in row.by_program:
      documented |= dict.fromkeys((x.lstrip('-') for x in names), row.setting)
  for name, setting in documented.items():
    if known := _setting_of(name):
      assert known == setting, name
  translated = {x for x in missing_names.OF_TRAIN if _setting_of(x)}
  own_names = {x.rpartition('.')[2] for x in config_lib.settings()}
  assert translated - own_names <= documented.keys()


def test_settings_page_names_no_argument_that_errors_do_not_know(hooks):
  for row in hooks.other_names():
    gensim, _, fasttext = row.by_program
    for name in {*gensim, *fasttext} - _METHODS:
      assert _setting_of(name) == row.setting, name


def test_settings_page_states_the_defaults(hooks):
  settings = config_lib.settings()
  for row in hooks.other_names():
    default = settings[row.setting].default
    if default in ('', 0, -1):  # chosen when a run begins
      continue
    stated = row.default.strip('`').replace(',', '').replace(' ', '_')
    if isinstance(default, bool | str):
      assert stated == str(default).lower(), row.setting
    else:
      assert float(stated) == default, row.setting


def test_train_states_the_defaults_of_its_arguments():
  settings = config_lib.settings()
  lines = inspect.getdoc(jaxemb.train)
  for name, setting in _ARGUMENTS.items():
    text = re.search(rf'^  {name}: (.+\n(    .+\n)*)', lines, re.MULTILINE)[1]
    default = str(settings[setting].default).removesuffix('.0')
    text = text.replace("'", '')
    stated = f'(default: {default})', f'{default} (default)'
    assert any(x in ' '.join(text.split()) for x in stated), name


def test_generated_page_leads_to_the_window(hooks):
  page = hooks.settings_page()
  first = page.partition('\n## data')[0]
  (row,) = re.findall(r'.*\(#model\.window\).*', first)
  assert 'context window' in row and '`window`' in row and '`ws`' in row
  assert page.count('<a id="model.window"></a>') == 1
  linked = set(re.findall(r'\(#([\w.]+)\)', page))
  assert linked <= set(config_lib.settings())


def test_generated_page_says_where_kinds_use_a_setting(hooks):
  page = hooks.settings_page()
  (row,) = re.findall(r'.*<a id="model.shared_negatives">.*', page)
  assert 'with `data.source=interactions|edges`, always' in row
  (row,) = re.findall(r'.*<a id="model.temperature">.*', page)
  assert 'for `data.source=edges`, only if `model.name=relations`' in row
