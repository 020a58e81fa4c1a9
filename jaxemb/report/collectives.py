"""The report's part on what devices send each other, from the compiled program.

These bytes stand in the program, whatever carries them; those that the kernel
counted on network interfaces are in `reporting.hosts`.
"""

from collections.abc import Mapping
from typing import Any

from jaxemb.report import markup

_REMARK = (
  'What the devices send each other, as the compiled program says and ring '
  'algorithms do it: an all-reduce over n devices sends 2 (n - 1) / n of its '
  'size from each, an all-to-all or a reduce-scatter (n - 1) / n, an '
  'all-gather n - 1 times what each has. Sums that end a dispatch of many '
  'steps are not in it, nor further rounds of a step whose rows do not fit '
  "the row layout's buffers. A word is one of the corpus, before frequent-word "
  'subsampling.'
)


def section(report: Mapping[str, Any]) -> str:
  """A table of the collectives that send something; HTML.

  Args:
    report: What report.json holds; `collectives` and anything in it may be
      missing.
  """
  found = report.get('collectives')
  if not isinstance(found, Mapping):
    return ''
  step = _figures(found, 'bytes_per_step_per_device')
  word = _figures(found, 'bytes_per_word')
  counts = {
    kind: count
    for kind, count in found.items()
    # Among one device there is nothing to send: unknown bytes are not zero.
    if markup.is_number(count) and count and step.get(kind) != 0
  }
  title = '<h3>Collectives of the compiled program</h3>\n'
  if not counts:
    return f'{title}<p>none: no step sends anything between devices.</p>\n'
  rows = [
    (
      markup.text(kind),
      markup.integer(count),
      markup.size(step.get(kind)),
      markup.size(word.get(kind)),
    )
    for kind, count in counts.items()
  ]
  total = (
    'Total',
    markup.integer(sum(counts.values())),
    markup.size(step.get('total')),
    markup.size(word.get('total')),
  )
  table = markup.table(
    'Bytes that collectives send: of one device in a step, and of all devices '
    'per word',
    (
      'Collective', '#In the program', '#A step, each device',
      '#A word, all devices',
    ),
    [*rows, ('total', total)],
  )  # fmt: skip
  rounds = report.get('further_rounds')
  told = ''
  if markup.is_number(rounds) and rounds:
    told = (
      f'<p>{markup.integer(rounds)} exchanges of rows had no room in one round '
      'and took further ones, as many bytes each.</p>\n'
    )
  return f'{title}<p class="note">{_REMARK}</p>\n{table}{told}'


def _figures(found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
  value = found.get(key)
  return value if isinstance(value, Mapping) else {}
