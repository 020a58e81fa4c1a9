"""The report of a run: report.json for programs, report.html for people.

The page holds its styles, data and script, and needs no network. It draws
without a plotting library: plotly.js would add 4.8 MB to every page, matplotlib
half a second to every run.

Words are chosen by frequency and category, never by their neighbours, so that
the page shows typical vectors rather than the best. Words whose vector is zero
or not finite are skipped.
"""

import collections
import dataclasses
import functools
import itertools
import json
import math
import pathlib
import re
import types
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb import config as config_lib
from jaxemb import embeddings
from jaxemb.evaluation import benchmarks, geometry
from jaxemb.storage import atomic

_MAX_POINTS = 300  # per curve
_NUM_TABLE_ROWS = 20
_NUM_WORDS, _NUM_NEIGHBOURS = 36, 8
_NUM_AMBIGUOUS_WORDS, _NUM_SENSE_NEIGHBOURS = 12, 6
_MAX_AMBIGUOUS_CANDIDATES = 500
MAX_SEARCHED, _MAX_SEARCHED_FOR_SENSES = 200_000, 30_000  # words
_NUM_FUNCTION_WORDS = 100
_MAX_FIELDS, _NUM_FREQUENT = 40, 6  # fields, ids of each
_MAX_MAP_WORDS, _MAX_GROUPS, _NUM_CLUSTERS = 480, 24, 12
_UNITS = ('', ' k', ' M', ' G', ' T')
_BYTES = (' bytes', ' kB', ' MB', ' GB', ' TB')

Categories = Mapping[str, Sequence[str]]  # words by category; may be empty


def write(
  workdir: pathlib.Path,
  report: Mapping[str, Any],
  metrics: Sequence[Mapping[str, Any]],
  vectors: embeddings.Embeddings,
  found: Sequence[benchmarks.Benchmark],
  labels: Categories = types.MappingProxyType({}),
) -> None:
  """Writes `workdir/report.json` and `workdir/report.html`.

  Any key of `report` may be missing; `metrics` are the rows of metrics.jsonl;
  `vectors` have counts; `found` and `labels` give the map its categories.
  UserError if a file cannot be written.
  """
  write_json(workdir, report)
  words, limit = vectors.of_words(), slice(MAX_SEARCHED)
  searched = embeddings.Embeddings(
    words.index_to_key[limit], words.vectors[limit], words.counts[limit]
  )
  categories = collections.defaultdict(list, labels)
  for benchmark in found:
    if benchmark.kind == 'categorization':
      for (word,), name in zip(benchmark.words, benchmark.labels, strict=True):
        categories[name].append(word)
  _write_page(
    workdir,
    name='words',
    unit='words',
    report=report,
    metrics=metrics,
    neighbours=neighbours(searched, categories),
    num_searched=len(searched),
    ambiguous=ambiguous_words(vectors),
    map=word_map(searched, categories),
  )


def write_clicks(
  workdir: pathlib.Path,
  report: Mapping[str, Any],
  metrics: Sequence[Mapping[str, Any]],
  vectors: np.ndarray,
  keys: Sequence[str],
  counts: np.ndarray,
  ranges: Sequence[tuple[str, int, int]],
) -> None:
  """As `write`, of a model of clicks.

  `vectors` [vocab, dim] float32 are rows of its ids, `keys` their names, of
  which only those on the page are asked for, `counts` [vocab] int; `ranges` are
  (name, first id, ids) of fields.
  """
  write_json(workdir, report)
  fields = field_neighbours(vectors, keys, counts, ranges=ranges)
  args = workdir, 'clicks', 'examples', report, metrics
  shown = {'fields': fields, 'num_fields': len(ranges)}
  _write_page(*args, max_searched=MAX_SEARCHED, **shown)


@functools.cache
def template(name: str) -> Any:
  """The Jinja template of a page, compiled once in a process."""
  import jinja2  # here, so that it does not slow the start of a run

  environment = jinja2.Environment(
    loader=jinja2.PackageLoader('jaxemb.report', ''),
    autoescape=True,
    undefined=jinja2.ChainableUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters |= FILTERS
  return environment.get_template(f'{name}.html.j2')


def _write_page(workdir, name, unit, report, metrics, **values) -> None:
  """report.html of a template; `unit` is what training is counted in."""
  report, rows = _plain(report), _plain(metrics)
  stride, evaluations = _stride(rows), report.get('evaluations') or []
  page = template(name).render(
    report=report,
    unit=unit,
    evaluation=report.get('evaluation') or {},
    num_rows=len(rows),
    rows=_some(rows),
    evaluations=_some(evaluations),
    # Backwards, so that the last row is among them.
    curves=_curves(rows[::-stride][::-1], unit)
    + _validation_curves(evaluations),
    stride=stride,
    dropped=config_lib.flat(report.get('dropped') or {}),
    settings=config_lib.flat(
      {k: report.get(k) or {} for k in ('config', 'tuning')}
    ),
    devices=_devices(report),
    **values,
  )
  with atomic.write(workdir / 'report.html') as file:
    file.write(page.encode(errors='backslashreplace'))


def write_json(workdir: pathlib.Path, report: Mapping[str, Any]) -> None:
  """Writes `workdir/report.json` alone; values that are not finite are null."""
  text = json.dumps(_plain(report), indent=2, ensure_ascii=False)
  with atomic.write(workdir / 'report.json') as file:
    file.write(text.encode(errors='backslashreplace') + b'\n')


def _plain(value: Any) -> Any:
  """The value as JSON gives it back, with None for what is not finite."""
  text = json.dumps(
    value, default=lambda x: x.tolist() if hasattr(x, 'tolist') else str(x)
  )
  return json.loads(text, parse_constant=lambda name: None)


def _curves(
  rows: Sequence[Mapping[str, Any]], unit: str
) -> list[tuple[str, str, list[Any]]]:
  """Curves as the page's script draws them; None leaves a gap."""
  curves = [
    ('Loss per example', 'nats', 'loss'),
    ('Speed', f'{unit} per second', f'{unit}_per_sec'),
    ('Learning rate', '', 'learning_rate'),
  ]
  if any(len(row.get('hosts') or ()) > 1 for row in rows):
    curves += [
      ('CPU', 'cores, all processes', 'cores'),
      ('Network', 'bytes sent per second', 'network_sent_bytes_per_sec'),
      ('Loopback', 'bytes sent per second', 'loopback_sent_bytes_per_sec'),
    ]
  drawn = [
    (title, unit, [[x['epoch'], x.get(key, _total(x, key))] for x in rows])
    for title, unit, key in curves
  ]
  return [curve for curve in drawn if any(y for _, y in curve[2])]


def _validation_curves(records):
  """Curves of what was evaluated while training went on."""
  names = (
    ('AUC', '', 'auc'),
    ('score', '', 'score'),
    ('loss', 'nats', 'log_loss'),
  )
  known = records[0]['validation'] if records else {}
  curves = [x for x in names if x[2] in known]
  if 'auc' in known:  # which is the score
    curves.remove(names[1])
  stride = _stride(records)
  drawn = [
    (
      f'Validation {title}',
      unit,
      [[x['epoch'], x['validation'][key]] for x in records[::-stride][::-1]],
    )
    for title, unit, key in curves
  ]
  return [curve for curve in drawn if any(y for _, y in curve[2])]


def _stride(rows):
  """Of how many rows a curve shows one."""
  return -(-len(rows) // _MAX_POINTS) or 1


def _some(rows):
  """At most 20 rows, evenly spaced, the first and the last among them."""
  shown = np.linspace(0, len(rows) - 1, min(len(rows), _NUM_TABLE_ROWS))
  return [rows[i] for i in shown.round().astype(int)]


def _total(row: Mapping[str, Any], key: str) -> float | None:
  """Sum over processes; of bytes, which the kernel counts, over hosts."""
  processes = row.get('hosts') or ()
  if 'bytes' in key:
    processes = {x.get('hostname'): x for x in processes}.values()
  values = [x.get(key) for x in processes]
  return None if None in values or not values else sum(values)


def _devices(report: Mapping[str, Any]) -> list[str]:
  """Devices counted by kind: `cuda:0 NVIDIA H200` without its number."""
  kinds = collections.Counter(
    re.sub(r'^\w+:\d+ (?=.)', '', name) for name in report.get('devices') or ()
  )
  return [f'{n} × {kind}' if n > 1 else kind for kind, n in kinds.items()]


class WordMap(NamedTuple):
  """A map of words: by group, (word, count, x, y), most frequent first."""

  groups: dict[str, list[tuple[str, int, float, float]]]
  is_clustered: bool  # groups are clusters rather than categories
  num_groups_omitted: int
  num_words_omitted: int
  explained_variance: float  # share that the two axes explain


def _finite(vectors: embeddings.Embeddings) -> embeddings.Embeddings:
  """With zeros, which are not shown, in place of vectors that are not finite.

  A report of what else there is beats none.
  """
  is_finite = np.isfinite(geometry.norms(vectors.vectors))
  if is_finite.all():
    return vectors
  mended = np.where(is_finite[:, None], vectors.vectors, np.float32(0))
  return dataclasses.replace(vectors, vectors=mended)


def _content_rows(vectors: embeddings.Embeddings) -> list[int]:
  """Rows of content words; all rows if words are not spelled out."""
  rows = np.flatnonzero(vectors.norms > 0).tolist()
  first = min(_NUM_FUNCTION_WORDS, len(vectors) // 20)
  spelled = [
    i for i in rows if i >= first and _is_spelled(vectors.index_to_key[i])
  ]
  return spelled if len(spelled) >= 3 else rows


def _is_spelled(word: str) -> bool:
  if len(word) < (3 if word.isascii() else 2):
    return False
  return word.isalpha() or all(unicodedata.category(c)[0] in 'LM' for c in word)


def neighbours(
  vectors: embeddings.Embeddings, categories: Categories
) -> list[tuple[str, int, int, embeddings.Ranked]]:
  """(word, rank from 1, count, its nearest words with cosines) of some words.

  One in each of equal steps of log frequency rank: of the category shown least
  so far; without categories, the most frequent.
  """
  vectors = _finite(vectors)
  rows, words = _content_rows(vectors), vectors.index_to_key
  if not rows:
    return []
  category_of = {w: name for name, own in categories.items() for w in own}
  num_shown = collections.Counter()  # by category

  def times_shown(row: int) -> float:
    category = category_of.get(words[row])
    return math.inf if category is None else num_shown[category]

  edges = np.geomspace(rows[0] + 1, rows[-1] + 2, _NUM_WORDS + 1) - 1
  shown = []
  for start, stop in itertools.pairwise(np.searchsorted(rows, edges)):
    if start < stop:
      row = min(rows[start:stop], key=times_shown)
      num_shown[category_of.get(words[row])] += 1
      near = vectors.most_similar(row, topn=_NUM_NEIGHBOURS)
      shown.append((words[row], row + 1, int(vectors.counts[row]), near))
  return shown


def word_map(
  vectors: embeddings.Embeddings, categories: Categories
) -> WordMap | None:
  """Frequent words by category, or by k-means cluster, on two PCA axes.

  The axes are those of unit vectors; None if there are fewer than three words.
  """
  vectors = _finite(vectors)
  keys = vectors.index_to_key
  row_of = {keys[i]: i for i in np.flatnonzero(vectors.norms > 0).tolist()}
  members = {}  # rows, most frequent first, each in its first category
  for name, words in categories.items():
    if rows := sorted(row_of.pop(word) for word in words if word in row_of):
      members[name] = rows
  names = sorted(members, key=lambda name: -len(members[name]))[:_MAX_GROUPS]
  # The most frequent words of every category in turn.
  turns = itertools.zip_longest(*(members[name] for name in names))
  known = [row for turn in turns for row in turn if row is not None]
  rows = sorted((known or _content_rows(vectors))[:_MAX_MAP_WORDS])
  if len(rows) < 3:
    return None
  units = geometry.unit(vectors.vectors[rows], vectors.norms[rows])
  if known:
    group_of = {row: name for name in names for row in members[name]}
  else:
    num_clusters = min(_NUM_CLUSTERS, max(1, len(rows) // 4))
    assigned = geometry.cluster(units, num_clusters).tolist()
    # A cluster is named after its most frequent word.
    names = [keys[rows[assigned.index(k)]] for k in assigned]
    group_of = dict(zip(rows, names, strict=True))
  # The padding makes two axes of a single dimension.
  centered = np.pad(units - units.mean(axis=0), ((0, 0), (0, 1)))
  left, scales, _ = np.linalg.svd(centered, full_matrices=False)
  variances = np.square(scales)
  explained = variances[:2].sum() / variances.sum() if variances.any() else 1.0
  positions = (left[:, :2] * scales[:2]).round(4).tolist()
  groups = collections.defaultdict(list)
  for row, position in zip(rows, positions, strict=True):
    point = keys[row], int(vectors.counts[row]), *position
    groups[group_of[row]].append(point)
  return WordMap(
    groups=dict(sorted(groups.items())),
    is_clustered=not known,
    num_groups_omitted=max(len(members) - _MAX_GROUPS, 0),
    num_words_omitted=max(len(known) - len(rows), 0),
    explained_variance=float(explained),
  )


def ambiguous_words(
  vectors: embeddings.Embeddings,
) -> list[tuple[str, int, list[tuple[float, list[str]]]]]:
  """(word, count, its senses' priors and nearest words) of frequent words.

  Those with the lowest expected cosine of two senses drawn from their priors.
  """
  table = vectors.sense_table
  if table is None:
    return []
  vectors = _finite(vectors)
  ambiguous = np.flatnonzero(np.diff(table.starts) > 1).tolist()
  candidates = [i for i in ambiguous if table.words[i].isalpha()]

  def expected_cosine(word: int) -> float:
    rows = table.rows(word)
    units = geometry.unit(table.vectors[rows])
    return float(np.square(table.priors[rows] @ units).sum())

  def near(row: int) -> list[str]:
    best = vectors.most_similar(
      row,
      topn=_NUM_SENSE_NEIGHBOURS,
      restrict_vocab=_MAX_SEARCHED_FOR_SENSES,
      min_prior=geometry.MIN_PRIOR,
    )
    owners = table.owners([vectors.key_to_index[name] for name, _ in best])
    return [table.words[i] for i in owners]

  shown = []
  candidates = candidates[:_MAX_AMBIGUOUS_CANDIDATES]
  for word in sorted(candidates, key=expected_cosine)[:_NUM_AMBIGUOUS_WORDS]:
    senses = [
      (float(table.priors[row]), near(row))
      for row in range(table.starts[word], table.starts[word + 1])
      if table.priors[row] >= geometry.MIN_PRIOR
    ]
    shown.append((table.words[word], int(table.counts[word]), senses))
  return shown


def field_neighbours(
  vectors: np.ndarray,
  keys: Sequence[str],
  counts: np.ndarray,
  ranges: Sequence[tuple[str, int, int]],
) -> dict[str, list[tuple[str, int, embeddings.Ranked]]]:
  """By field, (name, count, nearest ids of the field) of its most frequent ids.

  Arguments are those of `write_clicks`. Ids that no training row has are left
  out, fields with fewer than two such ids, and those after the first 40.
  Nothing is shown of single numbers, whose cosines are 1 or -1.
  """
  shown = {}
  for field, first, num in ranges[:_MAX_FIELDS] if vectors.shape[1] > 1 else ():
    num_searched = min(num, MAX_SEARCHED)
    here = np.asarray(counts[first : first + num])
    ids = np.argpartition(here, num - num_searched)[num - num_searched :]
    # By falling count, ties by id.
    ids = ids[np.lexsort((ids, -here[ids]))]
    rows = np.asarray(vectors[first + ids])
    lengths = geometry.norms(rows)
    used = (here[ids] > 0) & (lengths > 0) & np.isfinite(lengths)
    ids, units = ids[used], geometry.unit(rows[used], lengths[used])
    if len(ids) < 2:
      continue
    shown[field] = []
    for i in range(min(len(ids), _NUM_FREQUENT)):
      cosines = units @ units[i]
      near = geometry.nearest(cosines, {i}, _NUM_NEIGHBOURS)
      name, *others = (
        keys[int(first + ids[j])].removeprefix(f'{field}=') for j in (i, *near)
      )
      ranked = list(zip(others, cosines[near].tolist(), strict=True))
      shown[field].append((name, int(here[ids[i]]), ranked))
  return shown


def _written(write: Callable[[float], str], value: Any) -> str:
  """What `write` makes of a number; a dash for anything else."""
  is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
  return write(value) if is_number else '–'


def _short(value: float, units: Sequence[str] = _UNITS) -> str:
  """1234567 as 1.23 M."""
  power = 0
  # Rounded first, so that 999,950 is 1 M and not 1e+03 k.
  while abs(value) >= 999.5 and power < len(units) - 1:
    value, power = value / 1000, power + 1
  return f'{value:.3g}{units[power]}'


def _duration(secs: float) -> str:
  """47.2 s, 3 min 12 s, 2 h 5 min."""
  if secs < 99.95:
    return f'{secs:.3g} s'
  minutes, secs = divmod(round(secs), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours} h {minutes} min' if hours else f'{minutes} min {secs} s'


_WRITERS = {
  'integer': lambda value: f'{value:,.0f}',
  'fixed': lambda value: f'{value:.3f}',
  'precise': lambda value: f'{value:.5f}',
  'percent': lambda value: f'{value:.1%}',
  'short': _short,
  'size': lambda value: _short(value, _BYTES),
  'duration': _duration,
}
FILTERS = {
  name: functools.partial(_written, write) for name, write in _WRITERS.items()
}
