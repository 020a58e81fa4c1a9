"""The report's section on processes and hosts: CPU, memory, network.

Bytes are counted by host, CPU time and memory by process: what is summed over
processes takes the bytes of each host once.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxemb.report import charts, markup

_REMARK = (
  'Measured in training. CPU time and memory are of a process; bytes are all '
  'that the kernel of its host counted on network interfaces, of whatever '
  'program, without what passes the kernel by (RDMA, links between '
  'accelerators).'
)
_NETWORKS = (('network', 'network'), ('loopback', 'loopback'))
# By key: title, unit, whether it is a figure of a host.
_CURVES = {
  'cores': ('CPU', 'cores, all processes', False),
  'network_sent_bytes_per_sec': ('Network', 'bytes sent per second', True),
  'loopback_sent_bytes_per_sec': ('Loopback', 'bytes sent per second', True),
}


def section(
  report: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]
) -> str:
  """A line for one process; a table and curves for several; HTML.

  Args:
    report: What report.json holds; `hosts` (a mapping for each process) and
      `machine` may be missing.
    metrics: Rows of metrics.jsonl; may be empty.
  """
  processes = report.get('hosts') or ()
  if not processes:
    return '<p>The use of CPU, memory and network was not measured.</p>\n'
  if len(processes) == 1:
    machine = report.get('machine')
    cores = machine.get('cores') if isinstance(machine, Mapping) else None
    return f'<p>{_REMARK}</p>\n<p>{_line(processes[0], cores)}</p>\n'
  num_hosts = len({process.get('hostname') for process in processes})
  return (
    f'<p>{len(processes)} processes on {num_hosts} '
    f'host{"" if num_hosts == 1 else "s"}. {_REMARK} Curves count each host '
    f'once.</p>\n{_curves(processes, metrics)}{_table(processes)}'
  )


def _line(process: Mapping[str, Any], cores: object) -> str:
  """One process in a sentence."""
  of = f' of {cores} cores' if markup.is_number(cores) else ' cores'
  used = [
    f'One process on {markup.text(process.get("hostname") or "this host")} '
    f'used {markup.fixed(process.get("mean_cores"), 2)}{of} on average and '
    f'{markup.fixed(process.get("peak_cores"), 2)} at most (all on the host: '
    f'{markup.fixed(process.get("mean_host_busy_cores"), 2)})',
    f'memory: {markup.size(process.get("peak_rss_bytes"))} at most',
  ]
  for network, title in _NETWORKS:
    received, sent = (
      f'{markup.size(process.get(f"{network}_{way}_bytes"))} {way} '
      f'({_rate(process.get(f"{network}_{way}_bytes_per_sec"))})'
      for way in ('received', 'sent')
    )
    used.append(f'{title}: {received}, {sent}')
  return '; '.join(used) + '.'


def _rate(bytes_per_sec: object) -> str:
  known = markup.is_number(bytes_per_sec)
  return f'{markup.size(bytes_per_sec)}{"/s" if known else ""}'


def _table(processes: Sequence[Mapping[str, Any]]) -> str:
  """A row for each process."""
  columns = [
    'Process', 'Host', '#Cores', '#at most', '#Host busy', '#Memory',
    '#Received', '#Sent', '#Loopback received', '#Loopback sent',
  ]  # fmt: skip
  return markup.table(
    'Use by process: cores on average and at most, busy cores of its host, '
    'most memory, bytes in all and per second',
    columns,
    ([str(i), *_cells(process)] for i, process in enumerate(processes)),
  )


def _cells(process: Mapping[str, Any]) -> Iterator[str]:
  yield markup.text(process.get('hostname') or '–')
  for key in ('mean_cores', 'peak_cores', 'mean_host_busy_cores'):
    yield markup.fixed(process.get(key), 2)
  yield markup.size(process.get('peak_rss_bytes'))
  for network, _ in _NETWORKS:
    for way in ('received', 'sent'):
      amount = markup.size(process.get(f'{network}_{way}_bytes'))
      rate = _rate(process.get(f'{network}_{way}_bytes_per_sec'))
      yield f'{amount}<br><small>{rate}</small>'


def _curves(
  processes: Sequence[Mapping[str, Any]], metrics: Sequence[Mapping[str, Any]]
) -> str:
  """Sums over processes or hosts, by epoch."""
  # After a restart the steps behind the checkpoint are logged again.
  rows = {
    row['step']: row
    for row in metrics
    if 'step' in row and row.get('hosts') and markup.is_number(row.get('epoch'))
  }
  if not rows:
    return ''
  names = [process.get('hostname') for process in processes]
  first = {names.index(name) for name in names}  # process of each host
  logged = np.array(
    [
      [rows[step]['epoch']]
      + [
        _sum(rows[step]['hosts'], key, first if is_of_host else None)
        for key, (_, _, is_of_host) in _CURVES.items()
      ]
      for step in sorted(rows)
    ]
  )
  columns, _ = charts.thin(logged)
  figures = ''.join(
    _figure(key, columns[:, 0], columns[:, i])
    for i, key in enumerate(_CURVES, 1)
  )
  return f'<div class="columns curves">\n{figures}</div>\n'


def _sum(
  hosts: Sequence[Mapping[str, Any]], key: str, chosen: set[int] | None
) -> float:
  """Over the chosen processes; not a number if one of them is unknown."""
  values = [
    item.get(key)
    for i, item in enumerate(hosts)
    if chosen is None or i in chosen
  ]
  known = all(map(markup.is_number, values))
  return float(sum(values)) if known else float('nan')


def _figure(key: str, xs: np.ndarray, ys: np.ndarray) -> str:
  """One curve with its heading, or '' if nothing was used."""
  title, unit, _ = _CURVES[key]
  finite = ys[np.isfinite(ys)]
  if not finite.any():
    return ''
  description = (
    f'{title}, {unit}, by epoch: {markup.short(float(finite.mean()))} on '
    f'average, highest {markup.short(float(finite.max()))}.'
  )
  chart = charts.line_chart(
    f'hosts-{key}', title, description, xs, ys, 'epoch', from_zero=True
  )
  return f'<figure><h3>{title} <small>{unit}</small></h3>\n{chart}</figure>\n'
