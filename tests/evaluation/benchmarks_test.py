"""Every layout is recognised from content; what is malformed is counted."""

import pytest

from jaxemb import errors
from jaxemb.evaluation import benchmarks


def _read(tmp_path, text, name='some-name.txt', **kwargs):
  path = tmp_path / name
  path.write_bytes(text if isinstance(text, bytes) else text.encode())
  return benchmarks.read(path, **kwargs)


@pytest.mark.parametrize(
  'text',
  [
    'Cat\tdog\t7.5\nsun moon  3\n',
    'Cat,dog,7.5\r\nsun,moon,3',
    '# a comment\n\nCat dog 7.5 7 8\nsun moon 3 2 4',
    '\ufeffCat dog 7.5\rsun moon 3\r',
  ],
)
def test_pairs_by_any_separator_and_line_end(tmp_path, text):
  benchmark = _read(tmp_path, text)
  assert benchmark[:3] == (
    'some-name',
    'pairs',
    [('Cat', 'dog'), ('sun', 'moon')],
  )
  assert benchmark.ratings.tolist() == [7.5, 3.0] and benchmark.malformed == 0


def test_malformed_pairs_are_counted(tmp_path):
  text = (
    b'word1 word2 score\na b 1\na b\nc d x\ne f nan\ng\xff h 2\ni j 3\nk l 4'
  )
  benchmark = _read(tmp_path, text)
  assert benchmark.malformed == 4
  assert benchmark.pairs == [
    ('a', 'b'),
    ('g\ufffd', 'h'),
    ('i', 'j'),
    ('k', 'l'),
  ]


def test_given_delimiter_keeps_spaces_in_words(tmp_path):
  benchmark = _read(tmp_path, 'new york;paris;3\na;b;4\n', delimiter=';')
  assert benchmark.pairs == [('new york', 'paris'), ('a', 'b')]


def test_scws_uses_words_and_mean(tmp_path):
  fields = ['1', 'Brazil', 'n', 'nut', 'n', 'the <b> x', 'y', '0.0']
  line = '\t'.join(fields + ['1'] * 10)
  benchmark = _read(tmp_path, f'{line}\nbroken line\n{line}\n')
  assert benchmark[:3] == ('scws', 'scws', [('Brazil', 'nut')] * 2)
  assert benchmark.ratings.tolist() == [0, 0] and benchmark.malformed == 1


@pytest.mark.parametrize(
  ('text', 'layout', 'sections', 'malformed'),
  [
    (
      ': one\na b c d\na b c\n: gram2\ne f g h\r\n: empty\n',
      'questions-words',
      {'one': [('a', 'b', 'c', 'd')], 'gram2': [('e', 'f', 'g', 'h')]},
      1,
    ),
    ('a b c d\n', 'questions-words', {'unnamed': [('a', 'b', 'c', 'd')]}, 0),
    (
      ',type,word1,word2,word3,target\n0,2c,water,drop,hour,second\n1,3a,x\n',
      'semeval',
      {'2c': [('water', 'drop', 'hour', 'second')]},
      1,
    ),
  ],
)
def test_analogies(tmp_path, text, layout, sections, malformed):
  expected = benchmarks.Analogies('some-name', layout, sections, malformed)
  assert _read(tmp_path, text) == expected


def test_categories_drop_blank_and_repeated_words(tmp_path):
  text = (
    ',category,word\n0,fish,carp\n1,fish,\n2,"a, b",Cod\n3,bird,cod\n4,bird\n'
    '5,,crow\n'
  )
  categories = {'carp': 'fish', 'Cod': 'a, b'}
  assert _read(tmp_path, text, 'x.csv') == benchmarks.Categories(
    'x', 'categories', categories, blank=1, repeated=1, malformed=2
  )


@pytest.mark.parametrize(
  'content',
  [
    b'',
    b'# Read me\nThis is a text about the files, which has many words.\n',
    b'BZh91AY\0\0',
    b'the 1061396\nof 593677\n',
    b'the 0.1 0.2 0.3\nof 0.3 0.4 0.1\n',
    b'{"a": 1}',
  ],
)
def test_other_files_are_not_recognised(tmp_path, content):
  assert _read(tmp_path, content) is None


def test_find_walks_folders_and_makes_names_unique(tmp_path):
  for folder in ('a', 'b'):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / 'same.txt').write_text('cat dog 1\n')
  (tmp_path / 'README.md').write_text('Hello there, this is a text.\n')
  found, unknown = benchmarks.find([tmp_path, tmp_path / 'a' / 'same.txt'])
  assert [x.name for x in found] == ['same', 'same-2', 'same-3']
  assert [path.name for path in unknown] == ['README.md']
  with pytest.raises(errors.UserError, match='no-such'):
    benchmarks.find([tmp_path / 'no-such'])
  with pytest.raises(errors.UserError, match='no benchmark recognised'):
    benchmarks.find([tmp_path / 'README.md'])


def test_real_files(shared_data):
  folders = ('wordsim', 'analogy', 'categorization')
  found, unknown = benchmarks.find([shared_data / f for f in folders])
  assert not unknown and all(x.malformed == 0 for x in found)
  sizes = {}
  for x in found:
    if isinstance(x, benchmarks.Pairs):
      sizes[x.name] = len(x.pairs)
    elif isinstance(x, benchmarks.Analogies):
      sizes[x.name] = sum(map(len, x.sections.values()))
    else:
      sizes[x.name] = len(x.categories) + x.repeated + x.blank
  assert sizes == {
    'EN-MC-30': 30, 'EN-MEN-TR-3k': 3000, 'EN-RG-65': 65,
    'EN-RW-STANFORD': 2034, 'EN-SIMLEX-999': 999, 'EN-WS-353-ALL': 353,
    'EN-WS-353-REL': 252, 'EN-WS-353-SIM': 203, 'scws': 2003,
    'questions-words': 19544, 'semeval2012-as-analogies': 10014,
    'ap': 423, 'bless': 217, 'battig': 5231,
  }  # fmt: skip
