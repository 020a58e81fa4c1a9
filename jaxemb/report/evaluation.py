"""The report's section on evaluation: one table per kind of benchmark."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from jaxemb.report import markup

_MAX_OPEN_SECTIONS = 30


def headline(evaluation: Mapping[str, dict]) -> list[tuple[str, str, str]]:
  """Quality in a few figures.

  Args:
    evaluation: Results by benchmark.

  Returns:
    For each kind that has results: name, score, what it is. The mean of all
    sets, of analogies the set with most questions: their scales differ.
  """
  figures = []
  for kind, name, measure, write in (
    ('similarity', 'Word similarity', 'Spearman', markup.fixed),
    ('analog', 'Analogies', 'right', markup.percent),
    ('categorization', 'Categories', 'purity', markup.fixed),
  ):
    chosen = _of_kind(evaluation, kind)
    if kind == 'similarity':
      # Scored without the contexts that it is about: no headline.
      chosen = {
        name: result
        for name, result in chosen.items()
        if result.get('layout') != 'scws'
      }
    if kind == 'analog' and chosen:
      largest = max(chosen, key=lambda name: chosen[name].get('found') or 0)
      chosen = {largest: chosen[largest]}
    scores = _numbers(chosen, 'score')
    if scores:
      (first, *_) = chosen
      source = first if len(chosen) == 1 else f'mean of {len(scores)} sets'
      mean = sum(scores) / len(scores)
      figures.append((name, write(mean), f'{measure}, {source}'))
  return figures


def section(evaluation: Mapping[str, dict]) -> str:
  """All results as HTML, with coverage.

  Args:
    evaluation: Results by benchmark, as `evaluation.words.evaluate` returns
      them; those of an unknown kind are listed with their score.
  """
  if not evaluation:
    return '<p>These vectors were not evaluated: no benchmark was given.</p>'
  known = ('similarity', 'analog', 'categorization')
  others = {
    name: result
    for name, result in evaluation.items()
    if not str(result.get('kind', '')).startswith(known)
  }
  return ''.join(
    [
      f'<p>{_limits(evaluation)}</p>\n',
      _similarity(_of_kind(evaluation, 'similarity')),
      *(
        _analogies(name, result)
        for name, result in _of_kind(evaluation, 'analog').items()
      ),
      _plain('Categories', 'Purity', _of_kind(evaluation, 'categorization')),
      _plain('Other results', 'Score', others),
    ]
  )


def _of_kind(evaluation: Mapping[str, dict], kind: str) -> dict[str, dict]:
  return {
    name: result
    for name, result in evaluation.items()
    if str(result.get('kind', '')).startswith(kind)
  }


def _numbers(results: Mapping[str, dict], key: str) -> list[float]:
  values = (result.get(key) for result in results.values())
  return [value for value in values if markup.is_number(value)]


def _limits(evaluation: Mapping[str, dict]) -> str:
  parts = [
    'Found is how many items have all their words in the vocabulary; the '
    'others are left out of the scores.'
  ]
  limits = sorted(set(_numbers(evaluation, 'restrict_vocab')))
  if limits:
    limit = ' or '.join(map(markup.integer, limits))
    parts.append(f'Only the {limit} most frequent words count.')
  sizes = sorted(set(_numbers(evaluation, 'vocab')))
  if sizes:
    parts.append(
      f'{" or ".join(map(markup.integer, sizes))} words were searched.'
    )
  return ' '.join(parts)


def _similarity(results: Mapping[str, dict]) -> str:
  if not results:
    return ''
  rows = [
    (
      _name(name, result),
      _bar(result.get('score'), markup.fixed),
      markup.fixed(result.get('pearson')),
      *_coverage(result),
    )
    for name, result in results.items()
  ]
  scores = _numbers(results, 'score')
  if len(scores) > 1:
    mean = _bar(sum(scores) / len(scores), markup.fixed)
    pearsons = _numbers(results, 'pearson')
    # A mean over other sets than those of the score would mislead.
    is_whole = len(pearsons) == len(scores)
    pearson = sum(pearsons) / len(pearsons) if is_whole else None
    rows.append(
      ('total', (f'Mean of {len(scores)}', mean, markup.fixed(pearson), '', ''))
    )
  return '<h3>Word similarity</h3>\n' + markup.table(
    'Correlation of cosines with human ratings',
    ('Benchmark', '#Spearman', '#Pearson', '#Found / total', '#Coverage'),
    rows,
  )


def _analogies(name: str, result: dict) -> str:
  columns = ('Section', '#3CosAdd', '#3CosMul', '#Right', '#Found / total')
  columns = (*columns, '#Coverage')
  sections = result.get('sections') or {}
  rows = [('total', _analogy_row('All questions', result))]
  has_groups = 'semantic' in result or 'syntactic' in result
  if has_groups:
    for group, is_syntactic in (('semantic', False), ('syntactic', True)):
      part = result.get(group) or {}
      members = [
        ('sub', _analogy_row(section, sections[section]))
        for section in sections
        if section.startswith('gram') == is_syntactic
      ]
      if part.get('total') or members:
        rows.append(('total', _analogy_row(group.capitalize(), part)))
        rows += members
  caption = 'Share of questions answered right, by two measures'
  heading = f'<h3>Analogies: {_name(name, result)}</h3>\n'
  parts = [('sub', _analogy_row(*item)) for item in sections.items()]
  if has_groups:
    return heading + markup.table(caption, columns, rows)
  if len(parts) <= _MAX_OPEN_SECTIONS:
    return heading + markup.table(caption, columns, rows + parts)
  every = markup.table(f'{caption}, by section', columns, parts)
  return (
    heading
    + markup.table(caption, columns, rows)
    + markup.folded(f'All {len(parts)} sections', every)
  )


def _analogy_row(name: str, result: dict) -> Sequence[str]:
  return (
    markup.text(name),
    _bar(result.get('score'), markup.percent),
    markup.percent(result.get('score_cosmul')),
    markup.integer(result.get('correct')),
    *_coverage(result),
  )


def _plain(title: str, measure: str, results: Mapping[str, dict]) -> str:
  if not results:
    return ''
  rows = [
    (
      _name(name, result),
      _bar(result.get('score'), markup.fixed),
      markup.integer(result.get('clusters')),
      *_coverage(result),
    )
    for name, result in results.items()
  ]
  columns = ('Benchmark', f'#{measure}', '#Clusters', '#Found / total')
  return f'<h3>{markup.text(title)}</h3>\n' + markup.table(
    f'{measure} by benchmark', (*columns, '#Coverage'), rows
  )


def _name(name: str, result: dict) -> str:
  """The benchmark's name, with what was unusable in its file."""
  notes = list(_notes(result))
  small = f' <small>({", ".join(notes)})</small>' if notes else ''
  return markup.text(name) + small


def _notes(result: dict) -> Iterator[str]:
  for key, what in (
    ('malformed', 'malformed lines'),
    ('blank', 'rows without a word'),
    ('repeated', 'repeated words'),
  ):
    if markup.is_number(result.get(key)) and result[key]:
      yield f'{markup.integer(result[key])} {what} left out'
  if result.get('layout') == 'scws':
    yield 'contexts not used'


def _coverage(result: dict) -> tuple[str, str]:
  found, total = result.get('found'), result.get('total')
  is_known = markup.is_number(found) and markup.is_number(total) and total > 0
  return (
    f'{markup.integer(found)} / {markup.integer(total)}',
    markup.percent(found / total) if is_known else '–',
  )


def _bar(score: object, write: Callable[[object], str]) -> str:
  """A score over a bar of that length."""
  if not markup.is_number(score):
    return write(score)
  length = round(100 * min(max(score, 0), 1), 1)
  return f'<span class="bar" style="--v:{length}%">{write(score)}</span>'
