"""A synthetic log of clicks, whose best possible AUC is known.

The log odds of a click are planted: what each category, number and word of a
query does alone, what pairs of fields do (products of hidden vectors), and what
three fields do together (a product of three numbers). A model that only adds up
fields, or only pairs, can be told from one that has learned all.
"""

import json
import pathlib
from typing import Any, NamedTuple

import numpy as np

from jaxemb.runtime import budget
from jaxemb.storage import atomic

DEFAULT_ROWS = 200_000  # of which a tenth each is for validation and test
_ROW_BYTES = 800  # of memory, while it is made and written
# How the files are read, as `config.data` says it.
SETTINGS = {
  'format': 'csv',
  'columns': 'label:click,category:site,category:ad,category:segment,'
  'category:place,category:device,category:hour,category:day,category:weather,'
  'number:age,number:price,list:query',
  # Fractions of its rows, which are files of their own.
  'valid': '0.1',
  'test': '0.1',
}
_SIZES = {
  'site': 100,
  'ad': 40,
  'segment': 12,
  'place': 20,
  'device': 4,
  'hour': 8,
  'day': 7,
  'weather': 5,
}
_WORDS, _MAX_WORDS = 200, 4
_PAIRS = ('ad', 'segment'), ('place', 'hour'), ('segment', 'day')
_TRIPLE = 'device', 'hour', 'weather'
_HIDDEN = 2
_VERSION = 1
_SEED = 20


class Log(NamedTuple):
  """Rows of the log, as columns."""

  columns: dict[str, np.ndarray]  # of categories, [n] int
  words: np.ndarray  # [n, 4] int, -1 = none
  age: np.ndarray  # [n]
  price: np.ndarray  # [n], NaN = missing
  click: np.ndarray  # [n] bool
  # [n] log odds of a click, by the fields they are made of: 'first' of what
  # fields do alone, 'pairs', and 'all'.
  log_odds: dict[str, np.ndarray]


def generate(num_rows: int) -> Log:
  """Makes a log of `num_rows` rows."""
  rng = np.random.default_rng(_SEED)
  columns, chances = {}, {}
  for name, size in _SIZES.items():
    weights = 1 / (np.arange(size) + 3.0) ** 0.8
    chances[name] = weights / weights.sum()
    columns[name] = rng.choice(size, num_rows, p=chances[name])
  num_words = rng.integers(1, _MAX_WORDS + 1, num_rows)
  words = np.floor(_WORDS * rng.random((num_rows, _MAX_WORDS)) ** 2).astype(int)
  words = np.where(np.arange(_MAX_WORDS) < num_words[:, None], words, -1)
  age = np.round(rng.gamma(6, 6, num_rows) + 12)
  price = np.round(np.exp(rng.normal(2, 1, num_rows)), 2)

  def scaled(x):
    return (x - x.mean()) / x.std()

  def hidden(name, values):
    # Without a mean, or a field alone would tell something of the product.
    return (values - chances[name] @ values)[columns[name]]

  first = sum(
    rng.normal(0, 0.25, size)[columns[name]] for name, size in _SIZES.items()
  )
  effects = np.append(rng.normal(0, 0.4, _WORDS), 0)
  first += effects[words].sum(1) / num_words
  first += 0.25 * scaled(np.log(price)) - 0.2 * scaled(age)
  first -= 1.2
  pairs = 0.0
  for names in _PAIRS:
    a, b = (hidden(x, rng.normal(0, 1, (_SIZES[x], _HIDDEN))) for x in names)
    pairs = pairs + 0.7 * (a * b).sum(1)
  signs = (np.resize([-1.0, 1.0], _SIZES[x]) for x in _TRIPLE)
  triples = np.prod([*map(hidden, _TRIPLE, signs)], 0)
  log_odds = {
    'first': first,
    'pairs': first + pairs,
    'all': first + pairs + triples,
  }
  click = rng.random(num_rows) < 1 / (1 + np.exp(-log_odds['all']))
  price[rng.random(num_rows) < 0.02] = np.nan
  return Log(columns, words, age, price=price, click=click, log_odds=log_odds)


def write(cache: pathlib.Path, num_rows: int = DEFAULT_ROWS) -> pathlib.Path:
  """Returns a folder with train.csv, valid.csv, test.csv and best.json.

  best.json has the AUC on the test rows of each of the true log odds, those of
  'all' being what no model exceeds but by chance.
  """
  from jaxemb.evaluation import ranking

  folder = cache / f'toyclicks-{num_rows}-{_VERSION}'
  if (folder / 'best.json').exists():
    return folder
  import pyarrow as pa
  from pyarrow import csv

  budget.check_synthetic(f'toyclicks:{num_rows}', num_rows * _ROW_BYTES)
  log = generate(num_rows)
  with atomic.folder(folder) as new:
    names = np.array([f'w{i}' for i in range(_WORDS)] + [''])
    queries = ['|'.join(filter(None, x)) for x in names[log.words].tolist()]
    columns: dict[str, Any] = {'click': log.click.astype(int)}
    for name, values in log.columns.items():
      texts = np.array([f'{name[:2]}{i:03d}' for i in range(_SIZES[name])])
      columns[name] = texts[values]
    columns['age'] = log.age.astype(int)
    columns['price'] = pa.array(log.price, from_pandas=True)
    table = pa.table(columns | {'query': queries})
    held = num_rows // 10
    spans = {'test': (0, held), 'valid': (held, held), 'train': (2 * held,)}
    for name, span in spans.items():
      csv.write_csv(table.slice(*span), new / f'{name}.csv')
    best = {
      k: ranking.auc(log.click[:held], x[:held])
      for k, x in log.log_odds.items()
    }
    (new / 'best.json').write_text(json.dumps(best))
  return folder
