"""Evaluation results as a table for people."""

from collections.abc import Iterator

_TITLES = {
  'similarity': ('similarity', 'Spearman', 'Pearson'),
  'analogies': ('analogies', '3CosAdd', '3CosMul'),
  'categorization': ('categorization', 'purity', ''),
}
_SECOND_SCORES = {'similarity': 'pearson', 'analogies': 'score_cosmul'}


def format_table(results: dict[str, dict]) -> str:
  """One line per benchmark and per analogy section.

  Args:
    results: What `words.evaluate` returned.

  Returns:
    Lines of text, the last without a newline.
  """
  lines = [_limit_line(results)]
  for kind, title in _TITLES.items():
    chosen = {n: r for n, r in results.items() if r['kind'] == kind}
    if chosen:
      lines += ['', '{:<32} {:>8} {:>8}   found / total'.format(*title)]
    for name, result in chosen.items():
      lines += _benchmark_lines(name, result)
  return '\n'.join(lines)


def _limit_line(results: dict[str, dict]) -> str:
  result = next(iter(results.values()))
  return (
    f'vocabulary limit {result["restrict_vocab"]:,}: '
    f'{result["vocab"]:,} words searched, compared in upper case'
  )


def _benchmark_lines(name: str, result: dict) -> Iterator[str]:
  second = _SECOND_SCORES.get(result['kind'])
  yield _line(name, result, second) + _notes(result)
  for group in ('semantic', 'syntactic'):
    if result.get(group, {}).get('total'):
      yield _line(f'  {group}', result[group], second)
  sections = result.get('sections', {})
  if 'semantic' in result:
    for section, part in sections.items():
      yield _line(f'    {section}', part, second)
  elif sections:
    yield f'    ({len(sections)} sections: see the JSON file)'


def _line(name: str, result: dict, second: str | None) -> str:
  scores = [result['score'], result[second] if second else '']
  fields = [
    score
    if isinstance(score, str)
    else 'none'
    if score is None
    else f'{score:.4f}'
    for score in scores
  ]
  counts = f'{result["found"]:,} / {result["total"]:,}'
  return f'{name:<32} {fields[0]:>8} {fields[1]:>8}   {counts}'


def _notes(result: dict) -> str:
  notes = [
    f'{result[key]:,} {what}'
    for key, what in (
      ('malformed', 'malformed lines'),
      ('blank', 'blank words'),
      ('repeated', 'repeated words'),
    )
    if result.get(key)
  ]
  if result['layout'] == 'scws':
    notes.append('contexts not used')
  if 'clusters' in result:
    notes.insert(0, f'{result["clusters"]} clusters')
  return f'   ({", ".join(notes)})' if notes else ''
