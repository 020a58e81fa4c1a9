"""What devices send each other, on the page: a table, or 'none'."""

from jaxemb.report import collectives


def _report(**kinds):
  """By collective: instructions, bytes a step and device, bytes a word."""
  step = {kind: x[1] for kind, x in kinds.items()}
  word = {kind: x[2] for kind, x in kinds.items()}
  return {
    'collectives': {kind: x[0] for kind, x in kinds.items()}
    | {
      'bytes_per_step_per_device': step | {'total': 1234.0},
      'bytes_per_word': word | {'total': 56.0},
      'words_counted': 'words',
    }
  }


def test_a_row_for_each_that_sends_something():
  kinds = {
    'all-to-all': (4, 1000.0, 50.0),
    'all-gather': (0, 0.0, 0.0),
    'all-reduce': (3, 234.0, 6.0),
    'reduce-scatter': (1, 0.0, 0.0),  # at the end of a dispatch only
  }
  html = collectives.section(_report(**kinds))
  rows = [x.split('</tr>')[0] for x in html.split('<tbody>')[1].split('<tr')]
  cells = ['1 kB', '50 bytes', '234 bytes', '6 bytes', '1.23 kB', '56 bytes']
  for row, name, count, sent in zip(
    rows[1:],
    ('all-to-all', 'all-reduce', 'Total'),
    '437',
    zip(cells[::2], cells[1::2], strict=True),
    strict=True,
  ):
    assert f'>{name}</th>' in row
    for cell in (count, *sent):
      assert f'>{cell}</td>' in row
  assert 'none' not in html


def test_one_device_sends_nothing():
  for found in ({}, {'all-reduce': 0}, {'all-reduce': 2}):
    report = {'collectives': found | {'bytes_per_step_per_device': {}}}
    shown = 'all-reduce' in collectives.section(report).split('<table')[-1]
    assert shown == (found == {'all-reduce': 2})  # bytes are not known
  alone = _report(**{'all-reduce': (2, 0.0, 0.0)})
  assert '<p>none: ' in collectives.section(alone)
  assert (
    collectives.section({}) == collectives.section({'collectives': 3}) == ''
  )


def test_what_is_not_known_is_a_dash():
  nan = float('nan')
  html = collectives.section(_report(**{'all-reduce': (2, nan, nan)}))
  assert html.count('>–</td>') == 2
  html = collectives.section({'collectives': {'all-reduce': 2}})
  assert html.count('>–</td>') == 4
