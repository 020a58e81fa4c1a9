"""Runs jaxemb and writes whose CPU seconds its training took, for cores.py.

  python experiments/thread_times.py OUTPUT -m jaxemb.main FLAGS

OUTPUT gets, in JSON, `cpu_secs` of the process from its first dispatch to its
last, and of these `python_secs`: of threads that Python started, the main one,
which dispatches, and those that read, cut and pack batches. All others are
XLA's, which compute the steps.
"""

import json
import pathlib
import runpy
import sys
import threading
import time

import psutil

from jaxemb.run import metrics


def _thread_secs(native_id: int) -> float:
  """CPU seconds of a thread on Linux; psutil has them in hundredths only."""
  # What pthread_getcpuclockid makes of a thread: its id, inverted, above three
  # bits, 2 for the time on a core and 4 for a thread.
  try:
    return time.clock_gettime(~native_id << 3 | 6)
  except OSError:  # it has ended since
    return 0.0


def _secs() -> tuple[float, float]:
  """CPU seconds of this process, and of threads that Python did not start."""
  own = {x.native_id for x in threading.enumerate()}
  others = (x.id for x in psutil.Process().threads() if x.id not in own)
  native = sum(map(_thread_secs, others))
  return time.process_time(), native


def _measure(output: pathlib.Path) -> None:
  """Has the meter of the training measure its CPU seconds as well."""
  start, count = metrics.Meter.start, metrics.Meter.count
  first: list[float] = []

  def start_measuring(meter, *args):
    start(meter, *args)
    first[:] = _secs()

  def measure_when_done(meter, *args):
    count(meter, *args)
    if meter.totals.done >= meter.total:
      cpu, native = (x - y for x, y in zip(_secs(), first, strict=True))
      found = {'cpu_secs': cpu, 'python_secs': max(0.0, cpu - native)}
      output.write_text(json.dumps(found))

  metrics.Meter.start, metrics.Meter.count = start_measuring, measure_when_done


if __name__ == '__main__':
  _, output, _, module, *sys.argv[1:] = sys.argv
  _measure(pathlib.Path(output))
  runpy.run_module(module, run_name='__main__', alter_sys=True)
