"""Estimates the memory and communication of a run on other devices.

  jaxemb plan --config=wiki --topology=v5e:2x4 --vocab=1e6

--topology=NAME     devices, such as v5e:2x4, tpu7x:2x2x1 or cuda:h200x8;
                    several names, separated by commas, print a table
--vocab=NUMBER      size of a vocabulary with counts by Zipf's law (default:
                    read the data)
--json=FILE         also write the estimates as JSON
--config=..., --config.SETTING=VALUE    as for `jaxemb train`

The compiler of the devices compiles the training step from shapes. Nothing is
trained, and no table is allocated. If the devices have too little memory, the
exit code is 2 and the message suggests changes, such as a larger topology. For
several topologies, the table says which ones have enough memory, and the exit
code is 0.
"""

import argparse
import functools
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import ml_collections
import numpy as np

from jaxemb import errors
from jaxemb.cli import train as main_lib
from jaxemb.data import blocks as blocks_lib
from jaxemb.data import subsampling, windows
from jaxemb.models import base as model_base
from jaxemb.run import devices, plan
from jaxemb.runtime import process, topologies

_CORPUS_WORDS = 10**10  # of Zipf's law, of which the vocabulary has the counts


def zipf_counts(num_words: int) -> np.ndarray:
  """[num_words] int64, counts of words that follow Zipf's law."""
  weights = 1 / (np.arange(1, num_words + 1) + 2.7)
  counts = np.rint(weights * (_CORPUS_WORDS / weights.sum()))
  return np.maximum(1, counts.astype(np.int64))


def _zipf_text(
  num_words: int,
  setup: devices.Setup,
  fits_steps: bool,
  left_open: Sequence[str],
) -> plan.Data:
  """Returns a text of so many different words, of which no word is read."""
  del fits_steps, left_open  # as for the longest texts
  config, tuning = setup.config, setup.tuning
  counts = zipf_counts(num_words)
  chances = subsampling.center_probabilities(counts, config.data.sample)
  steps = windows.Steps(
    part_words=tuning.part_words,
    num_parts=tuning.parts,
    window=config.model.window,
    chunk=tuning.chunk,
  )
  shape = steps.num_parts, blocks_lib.batch_words(steps.part_words)
  ids = np.broadcast_to(np.int32(0), shape)
  batch = windows.pack(ids, steps.window, steps.part_words)
  # Nobody reads them, but their number counts.
  words = cast(Sequence[str], range(num_words))
  corpus = model_base.Corpus(words, counts, chances)
  return plan.Data(setup=setup, corpus=corpus, steps=steps, batch=batch)


def prepare(
  name: str, config: ml_collections.ConfigDict, num_words: int = 0
) -> plan.Job:
  """Makes what would train on a topology; on `num_words` of Zipf, or the data.

  Raises a `UserError` for what cannot be planned.
  """
  if num_words and config.data.source != 'text':
    raise errors.UserError(
      '--vocab is of words; others are planned from their data'
    )
  read = functools.partial(_zipf_text, num_words) if num_words else plan.read
  return plan.prepare(topologies.topology(name), config, read)


def describe(planned: Mapping[str, Any]) -> Iterator[str]:
  """Yields lines that show a plan."""
  memory, sent, mesh = (
    planned['memory'],
    planned['collectives'],
    planned['mesh'],
  )
  yield (
    f'{planned["topology"]}: {planned["devices"]} device(s), mesh '
    f'{mesh["data"]} x {mesh["table"]} (data x table), {planned["layout"]} '
    f'layout, {planned["strategy"]}; {planned["vocab"]:,} x {planned["dim"]} '
    f'{planned["dtype"]}, {planned["optimizer"]}, steps of '
    f'{planned["batch_words"]:,} {planned["unit"]}'
  )
  shown = 'tables', 'optimizer', 'scratch', 'program', 'peak'
  sizes = ', '.join(f'{x} {memory[f"{x}_bytes"] / 1e6:,.1f}' for x in shown)
  fraction = memory['peak_bytes'] / memory['device_bytes']
  yield f'memory of a device, MB: {sizes}: {fraction:.1%} of it'
  copies = planned['table_copies_by_loop_depth'].items()
  counts = ', '.join(f'{x} in {depth} loops' for depth, x in copies)
  yield f'copies of whole tables: {counts or "none"}'
  step = sent['bytes_per_step_per_device']
  kinds = [
    f'{k} {sent[k]} ({step[k]:,.0f} bytes a step)' for k in step
    if k != 'total' and sent[k]
  ]  # fmt: skip
  yield f'collectives of a device: {", ".join(kinds) or "none"}'
  if planned['layout'] == 'row' and mesh['table'] == 1:
    yield (
      'warning: no devices share the rows, and to prepare their exchange takes '
      'time; --config.table.layout=replicated is faster'
    )
  if planned['idle_devices']:
    yield (
      f'warning: {planned["idle_devices"]} devices are idle; give '
      '--config.mesh.data or --config.table.layout=row'
    )


def attempt(
  name: str, config: ml_collections.ConfigDict, num_words: int
) -> dict[str, Any]:
  """Returns the plan of a topology, or why there is none as its `obstacle`."""
  where, needed_bytes = topologies.topology(name), 0.0
  try:
    job = prepare(name, config, num_words)
    needed_bytes = job.device_bytes(job.state)
    planned = plan.examine(job)
  except errors.UserError as error:
    planned = {'topology': name, 'obstacle': str(error)}
    planned['memory'] = {
      'peak_bytes': needed_bytes, 'device_bytes': where.chip.gigabytes * 1e9
    }  # fmt: skip
  return planned | {'all_devices': len(where.devices)}


def compare(plans: Sequence[Mapping[str, Any]]) -> Iterator[str]:
  """Yields lines: a table of what `attempt` returned; the fewest devices."""
  yield 'topology      devices  GB each  needed'
  fitting = {}
  for x in plans:
    memory, num, text = x['memory'], x['all_devices'], x.get('obstacle')
    if text is None:
      text = 'fits'
      if x['idle_devices']:
        text += f'; {x["idle_devices"]} devices are idle'
      fitting[x['topology']] = num
    device, peak = (memory[f'{k}_bytes'] / 1e9 for k in ('device', 'peak'))
    yield f'{x["topology"]:14}{num:7}{device:9.1f}{peak:8.1f}  {text}'
  if not fitting:
    yield 'fits none of them'
    return
  fewest = min(fitting.values())
  names = ', '.join(k for k, num in fitting.items() if num == fewest)
  yield f'fewest devices: {names}'


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return process.exit_code(_run, sys.argv[1:] if argv is None else argv)


def _run(argv: Sequence[str]) -> None:
  if {'-h', '--help'} & set(argv):
    known = ' '.join(topologies.known())
    print(__doc__.strip(), '', 'topologies:', known, sep='\n')
    return
  parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  parser.add_argument('--topology', default='')
  parser.add_argument('--vocab', default='0')
  parser.add_argument('--json', default='')
  flags, rest = parser.parse_known_args(argv)
  try:
    num_words = int(float(flags.vocab))
  except (ValueError, OverflowError):
    num_words = -1
  if num_words < 0 or num_words > 2**31 - 2:
    raise errors.UserError(
      f'--vocab={flags.vocab} must be a number of words, such as 1e6'
    )
  config, _, _ = main_lib.parse(rest)
  names = [x.strip() for x in flags.topology.split(',')]
  planned: dict[str, Any] | list[dict[str, Any]]
  if len(names) > 1:
    for name in names:
      topologies.topology(name)  # before any of them is compiled
    planned = [attempt(name, config, num_words) for name in names]
    lines = compare(planned)
  else:
    planned = plan.examine(prepare(names[0], config, num_words))
    lines = describe(planned)
  print(*lines, sep='\n')
  if flags.json:
    text = json.dumps(planned, indent=2) + '\n'
    path = pathlib.Path(os.path.expanduser(flags.json))
    path.write_text(text, encoding='utf-8')
