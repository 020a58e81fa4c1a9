"""A run of `jaxemb.main`, and what it scored: for experiments on quality."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import machine

from jaxemb import errors


def finished(command: Sequence[str]) -> None:
  """Runs a command of jaxemb.

  Raises:
    UserError: it ends with what its user got wrong, such as a learning rate
      with which training diverges; it has the command's last line.
    RuntimeError: it ends in another way.
  """
  done = subprocess.run(command, capture_output=True, text=True)
  if done.returncode == 2:
    raise errors.UserError(' '.join(done.stderr.strip().splitlines()[-1:]))
  if done.returncode:
    told = f'{" ".join(command)} ended with {done.returncode}:'
    raise RuntimeError(f'{told}\n{done.stderr[-3000:]}')


def run(
  args: argparse.Namespace,
  seed: int,
  workdir: pathlib.Path,
  flags: Sequence[str],
) -> dict[str, Any]:
  """Trains and evaluates.

  Args:
    args: `config`, `text`, `sample`, `eval`, `restrict_vocab`, `epochs` and
      `override`, flags that come last.
    seed: of the run.
    workdir: its folder.
    flags: what the run is about.

  Returns:
    `words_per_sec`, `train_secs`, `loss`, `scores` and their `mean`; and of
    what it was made, `commit`, `date` and `cores`.

  Raises:
    UserError: the run failed; it has the run's last line.
  """
  command = [
    sys.executable, '-m', 'jaxemb.main',
    f'--config={machine.config(args.config)}',
    f'--workdir={workdir}', f'--config.data.path={args.text}',
    f'--config.data.sample={args.sample}', f'--config.eval.paths={args.eval}',
    f'--config.eval.restrict_vocab={args.restrict_vocab}',
    f'--config.train.epochs={args.epochs}', f'--config.seed={seed}',
    *flags, *args.override,
  ]  # fmt: skip
  finished(command)
  report = json.loads((workdir / 'report.json').read_text())
  scores = {k: v['score'] for k, v in report['evaluation'].items()}
  return {
    'words_per_sec': report['words_per_sec'],
    'train_secs': report['train_secs'],
    'loss': report['loss_per_example'],
    'scores': scores,
    'commit': machine.commit(),
    'date': machine.today(),
    'cores': machine.cores(),
    'mean': statistics.mean(x for x in scores.values() if x is not None),
  }
