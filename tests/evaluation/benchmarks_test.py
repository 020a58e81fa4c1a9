"""Every layout is recognised from content; what is malformed is counted."""

import time

import pytest

from jaxemb import errors
from jaxemb.evaluation import benchmarks


def _read(tmp_path, text, **kwargs):
  path = tmp_path / 'some-name.txt'
  path.write_bytes(text if isinstance(text, bytes) else text.encode())
  return benchmarks.read(path, **kwargs)


_SCWS = '\t'.join(
  ['1', 'Brazil', 'n', 'nut', 'n', 'the <b> Brazil </b> x', '<b>nut</b>', '0.0']
  + ['1'] * 10
)
_CONTEXTS = [('the ', ' Brazil ', ' x'), ('', 'nut', '')]
_ANIMALS = [('Cat', 'dog'), ('sun', 'moon')], [7.5, 3.0], 0


@pytest.mark.parametrize(
  ('layout', 'text', 'expected'),
  [
    ('pairs', 'Cat\tdog\t7.5\nsun moon  3\n', _ANIMALS),
    ('pairs', 'Cat,dog,7.5\r\nsun,moon,3', _ANIMALS),
    ('pairs', '# a comment\n\nCat dog 7.5 7 8\nsun moon 3 2 4', _ANIMALS),
    ('pairs', '\ufeffCat dog 7.5\rsun moon 3\r', _ANIMALS),
    (
      'pairs',
      b'word1 word2 score\na b 1\na b\nc d x\ne f nan\ng\xff h 2\ni 4 3\nk l 4',
      ([('a', 'b'), ('g\ufffd', 'h'), ('i', '4'), ('k', 'l')], [1, 2, 3, 4], 4),
    ),
    (
      'scws',
      f'{_SCWS}\nbroken line\n{_SCWS}\n{_SCWS.replace("</b>", "")}',
      ([('Brazil', 'nut')] * 2, [0, 0], 2, 0, 0, [_CONTEXTS] * 2),
    ),
    (
      'questions-words',
      ': one\na b c d\na b c\n: gram2\ne f g h\r\n: empty\n',
      ([tuple('abcd'), tuple('efgh')], ['one', 'gram2'], 1),
    ),
    ('questions-words', 'a b c d\n', ([tuple('abcd')], ['unnamed'], 0)),
    (
      'semeval',
      ',type,word1,word2,word3,target\n0,2c,water,drop,hour,second\n1,3a,x\n',
      ([('water', 'drop', 'hour', 'second')], ['2c'], 1),
    ),
    (
      'categories',
      ',category,word\n0,fish,carp\n1,fish,\n2,"a, b",Cod\n3,bird,cod\n4,bird\n'
      '5,,crow\n',
      ([('carp',), ('Cod',)], ['fish', 'a, b'], 2, 1, 1),
    ),
  ],
)
def test_layouts(tmp_path, layout, text, expected):
  name = 'scws' if layout == 'scws' else 'some-name'
  found = _read(tmp_path, text)
  assert found == benchmarks.Benchmark(found.path, name, layout, *expected)


def test_given_delimiter_keeps_spaces_in_words(tmp_path):
  benchmark = _read(tmp_path, 'new york;paris;3\na;b;4\n', delimiter=';')
  assert benchmark.words == [('new york', 'paris'), ('a', 'b')]


@pytest.mark.parametrize(
  'content',
  [
    b'',
    b'# Read me\nThis is a text about the files, which has many words.\n',
    b'the 0.1 0.2 0.3\nof 0.3 0.4 0.1\n',
    b',category,word\n0,fish,\n',
  ],
)
def test_other_files_are_not_recognised(tmp_path, content):
  assert _read(tmp_path, content) is None


def test_find_walks_folders_and_makes_names_unique(tmp_path):
  for folder in ('a', 'b'):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / 'same.txt').write_text('cat dog 1\n')
  (tmp_path / 'README.md').write_text('Hello there, this is a text.\n')
  found = benchmarks.find([tmp_path, tmp_path / 'a' / 'same.txt'])
  assert [x.name for x in found] == ['same', 'same-2', 'same-3']
  with pytest.raises(errors.UserError, match='no-such'):
    benchmarks.find([tmp_path / 'no-such'])
  with pytest.raises(errors.UserError, match='no benchmark recognised'):
    benchmarks.find([tmp_path / 'README.md'])


def test_contexts_of_scws_are_read_in_linear_time(tmp_path):
  context = 'the <b>word</b> is', 'a <b>text</b>'
  fields = '1', 'word', 'n', 'text', 'n', *context, '5', *['5'] * 10
  line = '\t'.join(fields)
  damaged = line.replace('<b>word</b>', '<b>' * 100_000)
  start_secs = time.process_time()
  scws = _read(tmp_path, f'{line}\n{line}\n{damaged}\n')
  assert time.process_time() - start_secs < 5  # quadratic time is minutes
  assert scws.malformed == 1 and len(scws.words) == 2
  assert scws.contexts[0][0] == ('the ', 'word', ' is')


def test_real_files(shared_data, caplog):
  folders = ('wordsim', 'analogy', 'categorization')
  found = benchmarks.find([shared_data / f for f in folders])
  assert not caplog.messages and all(x.malformed == 0 for x in found)
  sizes = {x.name: len(x.words) + x.repeated + x.blank for x in found}
  assert sizes == {
    'EN-MC-30': 30, 'EN-MEN-TR-3k': 3000, 'EN-RG-65': 65,
    'EN-RW-STANFORD': 2034, 'EN-SIMLEX-999': 999, 'EN-WS-353-ALL': 353,
    'EN-WS-353-REL': 252, 'EN-WS-353-SIM': 203, 'scws': 2003,
    'questions-words': 19544, 'semeval2012-as-analogies': 10014,
    'ap': 423, 'bless': 217, 'battig': 5231,
  }  # fmt: skip
