"""The printed table names every score with its coverage."""

from jaxemb.evaluation import summary


def _result(kind, **more):
  common = {'score': 0.5, 'found': 3, 'total': 1234, 'malformed': 0}
  limits = {'restrict_vocab': 300000, 'vocab': 70000, 'layout': 'pairs'}
  return {'kind': kind, **common, **limits, **more}


def test_table():
  part = {'score': None, 'score_cosmul': None, 'found': 0, 'total': 7}
  results = {
    'MEN': _result('similarity', pearson=0.25, malformed=2),
    'google': _result(
      'analogies',
      score_cosmul=0.125,
      sections={'family': part},
      semantic=part,
      syntactic=part | {'total': 0},
    ),
    'ap': _result('categorization', clusters=21, blank=4, repeated=0),
  }
  lines = summary.format_table(results).split('\n')
  rows = [line.split() for line in lines if line]
  assert rows[0][:3] == ['vocabulary', 'limit', '300,000:']
  assert 'MEN 0.5000 0.2500 3 / 1,234 (2 malformed lines)'.split() in rows
  assert 'google 0.5000 0.1250 3 / 1,234'.split() in rows
  assert 'semantic none none 0 / 7'.split() in rows
  assert 'family none none 0 / 7'.split() in rows
  assert 'ap 0.5000 3 / 1,234 (21 clusters, 4 blank words)'.split() in rows
  assert not any(row[0] == 'syntactic' for row in rows)
