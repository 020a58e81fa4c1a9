"""The report as one HTML page that needs nothing else.

A policy in the page's head forbids every request and every script but ours.
"""

import base64
import collections
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxemb.report import (
  collectives,
  evaluation,
  hosts,
  markup,
  scatter,
  style,
  training,
  words,
)

_COUNTERS = {
  'out_of_vocabulary_words': 'Words of the corpus that have no vector',
  'sense_words_out_of_vocabulary': 'Words of config.senses.words not in the '
  'vocabulary',
  'words_below_vocabulary': 'Different words too rare for the vocabulary',
  'invalid_utf8_bytes': 'Bytes that are not UTF-8, replaced',
  'replaced_bytes': 'Bytes not UTF-8 or not allowed in XML, replaced',
  'lost_bytes': 'Bytes of markup that could not be read',
  'overlong_words': 'Words cut for their length',
  'redirects': 'Pages skipped as redirects',
  'other_namespace_pages': 'Pages skipped as no articles',
  'words_renamed_in_exports': 'Words renamed where a file format forbids them',
}
_PARTS = (
  ('training', 'Training'),
  ('evaluation', 'Evaluation'),
  ('neighbours', 'Nearest neighbours'),
  ('map', 'Map'),
  ('left-out', 'What was left out'),
  ('hosts', 'Processes and hosts'),
  ('settings', 'Settings and machine'),
)


def render(
  report: Mapping[str, Any],
  metrics: Sequence[Mapping[str, Any]],
  neighbours: tuple[Sequence[words.Neighbours], int],
  word_map: words.WordMap | None,
  senses: str = '',
) -> str:
  """The page.

  Args:
    report: What report.json holds; any key may be missing.
    metrics: Rows of metrics.jsonl; may be empty.
    neighbours: What `words.neighbours` returned.
    word_map: What `words.word_map` returned.
    senses: What `senses.section` returned; '' = there is none.

  Returns:
    HTML, encodable as UTF-8.
  """
  contents = (
    training.section(report, metrics),
    evaluation.section(_mapping(report, 'evaluation')),
    _neighbours(*neighbours) + senses,
    _map(word_map),
    _left_out(report),
    hosts.section(report, metrics) + collectives.section(report),
    _settings(report),
  )
  sections = ''.join(
    f'<section id="{name}" aria-labelledby="{name}-h">\n'
    f'<h2 id="{name}-h">{title}</h2>\n{content}</section>\n'
    for (name, title), content in zip(_PARTS, contents, strict=True)
  )
  script_hash = base64.b64encode(
    hashlib.sha256(style.JS.encode()).digest()
  ).decode()
  title = markup.text(f'{_title(report)} · jaxemb report')
  return (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    f"form-action 'none'; script-src 'sha256-{script_hash}'\">\n"
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    '<meta name="color-scheme" content="light dark">\n'
    f'<title>{title}</title>\n<link rel="icon" href="data:,">\n'
    f'<style>{style.CSS}</style>\n</head>\n<body>\n{_header(report)}'
    f'<main>\n{sections}</main>\n{_footer(report)}'
    f'<script>{style.JS}</script>\n</body>\n</html>\n'
  )


def _mapping(report: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
  """The mapping at nested keys, or an empty one."""
  value = report
  for key in keys:
    value = value.get(key) if isinstance(value, Mapping) else None
  return value if isinstance(value, Mapping) else {}


def _title(report: Mapping[str, Any]) -> str:
  model = str(report.get('model') or 'embedding')
  num_words = markup.integer(report.get('vocab_words'))
  dim = markup.integer(report.get('dim'))
  return f'{model[:1].upper()}{model[1:]} vectors, {num_words} words × {dim}'


def _header(report: Mapping[str, Any]) -> str:
  started = report.get('started')
  brand = 'jaxemb training report'
  if started:
    brand = f'{brand} · started {str(started).replace("T", " ")}'
  links = ''.join(f'<a href="#{name}">{title}</a>\n' for name, title in _PARTS)
  tiles = ''.join(
    f'<div><dt>{markup.text(name)}</dt><dd>{value}'
    f'<small>{markup.text(note)}</small></dd></div>\n'
    for name, value, note in _tiles(report)
  )
  return (
    f'<header>\n<p class="brand">{markup.text(brand)}</p>\n'
    f'<h1>{markup.text(_title(report))}</h1>\n'
    f'<p class="lead">{_lead(report)}</p>\n{_warnings(report)}'
    f'<dl class="tiles">\n{tiles}</dl>\n'
    f'<nav aria-label="Sections">{links}</nav>\n</header>\n'
  )


def _lead(report: Mapping[str, Any]) -> str:
  epochs = _mapping(report, 'config', 'train').get('epochs')
  devices = ', '.join(_device_groups(report))
  parts = [f'Trained on {markup.short(report.get("corpus_words"))} words']
  if markup.is_number(epochs):
    parts.append(f' in {epochs:g} epoch{"" if epochs == 1 else "s"}')
  if devices:
    parts.append(f' on {markup.text(devices)}')
  return ''.join(parts) + '.'


def _warnings(report: Mapping[str, Any]) -> str:
  lines = []
  if report.get('finished') is False:
    lines.append('The run is not finished; start it again to resume.')
  loss = report.get('loss_per_example')
  if loss is not None and not markup.is_number(loss):
    lines.append('The loss is not finite: the vectors are of no use.')
  return ''.join(
    f'<p class="warning" role="note"><b>Note.</b> {line}</p>\n'
    for line in lines
  )


def _tiles(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
  """Name, value and remark of each key figure."""
  with_compilation = markup.short(report.get('words_per_sec_with_compilation'))
  yield (
    'Words per second',
    markup.short(report.get('words_per_sec')),
    f'{with_compilation} with compilation',
  )
  yield from evaluation.headline(_mapping(report, 'evaluation'))
  yield (
    'Training time',
    markup.duration(report.get('train_secs')),
    f'{markup.duration(report.get("total_secs"))} in all',
  )
  yield (
    'Loss per example',
    markup.fixed(report.get('loss_per_example')),
    'at the end, in nats',
  )
  yield (
    'Peak memory',
    markup.size(report.get('peak_rss_bytes')),
    f'tables {markup.size(report.get("table_bytes"))}',
  )


def _neighbours(found: Sequence[words.Neighbours], num_searched: int) -> str:
  if not found:
    return '<p>There is no word to show.</p>\n'
  items = ''.join(
    f'<div><dt>{markup.word(item.word)}<small><span>{item.count:,} ×'
    f'</span> <span>rank {item.rank:,}</span></small></dt><dd>'
    + '\n'.join(
      f'<span>{markup.word(other)} <small>{cosine:.2f}</small></span>'
      for other, cosine in item.nearest
    )
    + '</dd></div>\n'
    for item in found
  )
  return (
    f'<p>The words with the largest cosine, among the {num_searched:,} most '
    f'frequent ones. The {len(found)} words were chosen by frequency, at equal '
    'steps of log rank behind the most common words, and from the categories '
    'where these have one, never by their neighbours.</p>\n'
    f'<dl class="near">\n{items}</dl>\n'
  )


def _map(word_map: words.WordMap | None) -> str:
  if word_map is None:
    return '<p>There are too few words for a map.</p>\n'
  names = [name.replace('_', ' ') for name in word_map.names]
  tips = [
    f'{word} · {names[group]} · {count:,} ×'
    for word, count, group in zip(
      word_map.words, word_map.counts, word_map.groups, strict=True
    )
  ]
  title = f'Map of {len(word_map.words)} words in {len(names)} groups'
  figures = ''.join(
    f'<div class="frame {size}">'
    + scatter.scatter(
      f'map-{size}', title,
      'Words that are used alike lie together. The words of each group are '
      'listed below the map.',
      word_map.positions, word_map.words, tips, word_map.groups, names,
      width, height,
    )
    + '</div>\n'
    for size, width, height in (('wide', 1080, 760), ('narrow', 360, 520))
  )  # fmt: skip
  members = collections.defaultdict(list)
  for word, group in zip(word_map.words, word_map.groups, strict=True):
    members[int(group)].append(markup.word(word))
  legend = ''.join(
    f'<li data-g="{group}">{scatter.mark(group)}{markup.text(name)} '
    f'<small>{len(members[group])}</small></li>\n'
    for group, name in enumerate(names)
  )
  listed = markup.table(
    'Words on the map by group',
    ('Group', 'Words, the most frequent first'),
    (
      (markup.text(name), ', '.join(members[group]))
      for group, name in enumerate(names)
    ),
  )
  return (
    f'<p>{_map_remark(word_map)}</p>\n<figure class="map">\n{figures}'
    f'<ul class="legend">\n{legend}</ul>\n</figure>\n'
    + markup.folded('The words of each group', listed)
  )


def _map_remark(word_map: words.WordMap) -> str:
  num_words = len(word_map.words)
  if word_map.is_clustered:
    parts = [
      f'The {num_words} most frequent words behind the very common ones. No '
      'categories were given: the colours are clusters (k-means on the full '
      'vectors), each named after its most frequent word.'
    ]
  else:
    parts = [f'{num_words} words, coloured by the category they belong to.']
  if word_map.num_groups_left_out:
    parts.append(f'{word_map.num_groups_left_out} smaller categories are left '
                 'out.')  # fmt: skip
  if word_map.num_words_left_out:
    parts.append(f'{word_map.num_words_left_out} rarer words are left out.')
  share = markup.percent(word_map.variance_share)
  if word_map.perplexity is None:
    parts.append(f'Layout: PCA, which keeps {share} of the variance.')
  else:
    parts.append(
      f'Layout: t-SNE of the unit vectors, perplexity '
      f'{word_map.perplexity:.3g}; it does not see the groups. Near means '
      'similar; distances between groups and their sizes mean little. (PCA '
      'would keep '
      f'{share} of the variance in two dimensions.)'
    )
  return ' '.join(parts)


def _left_out(report: Mapping[str, Any]) -> str:
  counters, problems = [], []
  _gather(_mapping(report, 'dropped'), '', counters, problems)
  if not counters and not problems:
    return '<p>Nothing was counted as left out.</p>\n'
  rows, zeros = [], []
  for key, value in counters:
    leaf = key.rpartition('.')[2]
    name = _COUNTERS.get(leaf, leaf.replace('_', ' ').capitalize())
    if value == 0:
      zeros.append(markup.text(name[0].lower() + name[1:]))
    else:
      shown = (
        markup.integer(value) if isinstance(value, int) else markup.text(value)
      )
      key = f'<br><small>{markup.text(key)}</small>'
      rows.append((markup.text(name) + key, shown))
  content = '<p>Nothing is dropped silently; this is all of it.</p>\n'
  if rows:
    caption = 'Counters, with their keys in report.json'
    content += markup.table(caption, ('What', '#Amount'), rows)
  if problems:
    lines = ''.join(f'<li>{markup.text(line)}</li>\n' for line in problems)
    content += f'<h3>Problems in the input</h3>\n<ul>\n{lines}</ul>\n'
  if zeros:
    content += f'<p class="note">Zero: {"; ".join(zeros)}.</p>\n'
  return content


def _gather(
  dropped: Mapping[str, Any],
  prefix: str,
  counters: list[tuple[str, object]],
  problems: list[str],
) -> None:
  """Collects counters under dotted keys, and lines of problems."""
  for key, value in dropped.items():
    if isinstance(value, Mapping):
      _gather(value, f'{prefix}{key}.', counters, problems)
    elif isinstance(value, (list, tuple)):
      problems.extend(map(str, value))
    else:
      counters.append((f'{prefix}{key}', value))


def _device_groups(report: Mapping[str, Any]) -> list[str]:
  """Devices of a kind in one line: `cuda:0 NVIDIA H200` goes by its kind."""
  names = collections.Counter(
    re.sub(r'^\w+:\d+ (?=.)', '', str(device))
    for device in report.get('devices') or ()
  )
  return [f'{n} × {name}' if n > 1 else name for name, n in names.items()]


def _settings(report: Mapping[str, Any]) -> str:
  config = _mapping(report, 'config')
  groups = {
    f'config.{key}': _flat(value)
    for key, value in config.items()
    if isinstance(value, Mapping)
  }
  single = {k: v for k, v in config.items() if not isinstance(v, Mapping)}
  if single:
    groups = {'config': _flat(single)} | groups
  machine = dict(_mapping(report, 'machine'))
  if 'memory' in machine and markup.is_number(machine['memory']):
    machine['memory'] = markup.size(machine['memory'])
  devices = [('devices', line) for line in _device_groups(report)]
  groups['Machine'] = [*_flat(machine), *devices]
  groups['Versions'] = _flat(_mapping(report, 'versions'))
  blocks = ''.join(
    f'<div><h3>{markup.text(title)}</h3>\n'
    + markup.definitions(
      (name, markup.text(value)) for name, value in items
    ).replace('<dl>', '<dl class="rows">')
    + '</div>\n'
    for title, items in groups.items()
    if items
  )
  return f'<div class="columns settings">\n{blocks}</div>\n'


def _flat(values: Mapping[str, Any], prefix: str = '') -> list[tuple[str, str]]:
  """Dotted keys with their values, written as in a config file."""
  items = []
  for key, value in values.items():
    if isinstance(value, Mapping):
      items += _flat(value, f'{prefix}{key}.')
    else:
      items.append((f'{prefix}{key}', str(value) or '(empty)'))
  return items


def _footer(report: Mapping[str, Any]) -> str:
  version = _mapping(report, 'versions').get('jaxemb', '')
  return (
    f'<footer><p>Written by jaxemb {markup.text(version)}. The same figures '
    'for programs: report.json; every logged row: metrics.jsonl.</p></footer>\n'
  )
