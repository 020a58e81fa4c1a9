"""The gallery: its scripts run on little data, and print what they plot."""

import os
import pathlib
import re

import pytest

from tests import forks

_GALLERY = pathlib.Path(__file__).parents[1] / 'docs' / 'gallery'
# By script, in the order of the page: little data, and what is printed, with
# numbers between limits.
_RUNS = {
  'senses': ('toywiki:200000', r'": \w+ (\S+),', 0, 1),
  'merging': ('toywiki:200000', r'after merging: .* (\S+)', 0.3, 1),
  'staleness': ('toywiki:60000', r'analogies (\S+)', 0, 1),
  'precision': ('toywiki:60000', r'similarity (\S+)', -1, 1),
  'calibration': ('toyclicks:8000', r'AUC (\S+),', 0.5, 1),
  'node_map': ('toygraph:400', r'same community: (\S+)', 0.9, 1),
  'training_curve': ('1000', r'epochs, \S+ s, (\S+)', 0, 1),
  'own_model': ('', r'(\S+) degrees', -180, 180),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', _RUNS)
def test_scripts_plot_what_they_print(name, tmp_path):
  data, pattern, low, high = _RUNS[name]
  plot, log = tmp_path / 'plot.svg', tmp_path / 'log.txt'
  command = str(_GALLERY / f'{name}.py'), data, str(plot)
  forks.call(forks.script, [command], os.environ, log, folder=tmp_path)
  assert '<svg' in plot.read_text()
  numbers = [float(x) for x in re.findall(pattern, log.read_text())]
  assert numbers and low <= min(numbers) and max(numbers) <= high


def test_the_page_shows_every_script():
  page = (_GALLERY / 'index.md').read_text()
  shown = re.findall(
    r'!\[[^]]+\]\((\w+)\.(svg|png)\)\n\n[^`]+\n\n'
    r'``` \{\.python title="\1\.py"\}\n--8<-- "gallery/\1\.py"\n```\n',
    page,
  )
  assert [name for name, _ in shown] == list(_RUNS)
  assert {name for name, _ in shown} == {x.stem for x in _GALLERY.glob('*.py')}
  for name, suffix in shown:
    assert (_GALLERY / f'{name}.{suffix}').stat().st_size < 60_000
