r"""Models of clicks: whether they learn what those of torch learn.

  python experiments/ctr_quality.py --case=same_steps --config=ctr:criteo \
    --config.data.path=train.txt --peer_python=/path/to/python
  python experiments/ctr_quality.py --case=deepctr --seeds=3 \
    --config.data.path=train.csv --config.data.test=test.csv \
    --peer_python=/path/to/python

same_steps: the log loss after --epochs from the same parameters, in the same
steps, against a plain model of torch, with Adagrad and with dense Adam; and the
examples/s of both. --config is any of clicks; more settings follow it.

deepctr: the AUC of the test rows (of the validation rows without any) after
--epochs, against deepctr-torch with the same layers, optimizer, L2 and batch,
by seed: as it is, with its own first parameters (normal, deviation .0001) and
order; and from the parameters of jaxemb, in its steps.

The peers run in a Python that has torch, and deepctr-torch for its case.
Without --peer_python there is jaxemb alone.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any

import experiment
import numpy as np

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.run import devices as devices_lib

_CASES = 'same_steps', 'deepctr'
_MODELS = 'wide_deep', 'deepfm'
# As torch has them by default.
_EPSILONS = {'adagrad': 1e-10, 'adam': 1e-8}
_FLAGS = 'case', 'config', 'epochs', 'override'
_MOMENT_BATCHES = 16  # as `predictor.of_training` takes


# One run beside its peers.


def _settings(args, seed: int, model: str, optimizer: str) -> dict[str, Any]:
  """Settings of a run that ends after --epochs, with torch's optimizers."""
  return {
    'seed': seed,
    'model.name': model,
    'optimizer.name': f'{optimizer}_full',
    'optimizer.rows': 'all' if optimizer == 'adam' else 'looked_up',
    'optimizer.epsilon': _EPSILONS[optimizer],
    'optimizer.dense': optimizer,
    'optimizer.plateau_factor': 1.0,
    'train.patience': 0,
    'train.epochs': args.epochs,
    'eval.every_epochs': 0.0,
  }


def _beside(
  args: argparse.Namespace,
  folder: pathlib.Path,
  settings: Mapping[str, Any],
  kinds: tuple[str, ...],
) -> dict[str, Any]:
  """Trains as a user does, and each kind of peer on the same rows.

  Returns, by side, `auc`, `log_loss` and `examples_per_sec`; of peers also how
  far its probabilities are from those of jaxemb.
  """
  workdir = folder / 'run'
  command = experiment.training_command(args, workdir, settings)
  experiment.call(command)
  report = experiment.read_report(workdir)
  from jaxemb.clicks import metrics as evaluation
  from jaxemb.clicks import predictor

  parts, given = _given(command[3:])
  rows, own = given.pop('rows'), predictor.load(workdir / 'export')
  scores = own.scores(rows)
  keys = 'auc', 'log_loss'

  def judged(scores):
    found = evaluation.evaluate(rows.labels, scores)
    return {k: found[k] for k in keys}

  found = {'jaxemb': judged(scores)}
  found['jaxemb']['examples_per_sec'] = report['examples_per_sec']
  source = folder / 'given.npz'
  np.savez(source, **given)
  num = len(given['labels'])
  for kind in kinds if args.peer_python else ():
    peer = _peer(args, source, _peer_settings(parts, kind, args.threads))
    theirs = peer.pop('scores')
    found[kind] = judged(theirs) | {
      'examples_per_sec': num / float(peer.pop('secs')),
      'apart': float(np.abs(theirs - scores).max()),
    }
    if 'running' in peer and parts.config.model.batch_norm:
      found[kind]['with_running_moments'] = judged(peer['running'])
  return found


def _given(flags: list[str]) -> tuple[Any, dict[str, Any]]:
  """The parts of a run, and its rows and first parameters, for a peer."""
  from jaxemb.cli import train as main
  from jaxemb.clicks import results
  from jaxemb.run import build, loop, rundir

  config, _, _ = main.parse(flags)
  setup = devices_lib.choose(config, {})
  cache = rundir.cache_folder()
  parts = build.parts(setup, cache)
  source = parts.source
  rows = source.valid if source.test is None else source.test
  if rows is None:
    raise errors.UserError('no rows to score; give --config.data.valid=0.1')
  if any(x.num_columns > 1 for x in source.fields.ids):
    raise errors.UserError('peers have no fields of several values')
  state = parts.new_state(loop.init_key(config.seed))
  model = results.collect(parts, state)
  given = dict(model.tables) | _flat(model.params)
  size = parts.tuning.part_words
  found = [_in_order(x.batch, size) for x in source.items(None, 0)]
  keys = 'ids', 'numbers', 'labels'
  columns = zip(*found, strict=True)
  given |= {k: np.concatenate(x) for k, x in zip(keys, columns, strict=True)}
  given |= {f'valid_{k}': np.asarray(getattr(rows, k)) for k in keys}
  size, train = (
    min(config.train.batch_examples, len(source.train)),
    source.train,
  )
  starts = np.linspace(0, len(train) - size, _MOMENT_BATCHES).astype(int)
  for key in keys[:2]:
    blocks = [getattr(train, key)[x : x + size] for x in np.unique(starts)]
    given[f'moment_{key}'] = np.stack(blocks)
  return parts, given | {'rows': rows}


def _flat(params: Mapping[str, Any], before: str = '') -> dict[str, np.ndarray]:
  """Arrays of nested dicts, by their names with slashes."""
  found = {}
  for key, value in params.items():
    if isinstance(value, Mapping):
      found |= _flat(value, f'{before}{key}/')
    else:
      found[before + key] = np.asarray(value)
  return found


def _in_order(batch: Any, part_examples: int) -> list[np.ndarray]:
  """Ids, numbers and labels of a batch in order of its steps."""

  def ordered(x):
    shape = x.shape[0], x.shape[1] // part_examples, part_examples
    cut = x.reshape(*shape, *x.shape[2:]).swapaxes(0, 1)
    return cut.reshape(x.shape[0] * x.shape[1], *x.shape[2:])

  labels = ordered(batch.labels)
  arrays = ordered(batch.ids), ordered(batch.numbers), labels
  return [x[labels >= 0] for x in arrays]


def _peer_settings(parts: Any, kind: str, threads: int) -> dict[str, Any]:
  config, fields = parts.config, parts.source.fields
  o, m = config.optimizer, config.model
  if m.dropout:
    raise errors.UserError('config.model.dropout=0 is needed beside peers')
  if o.dense_learning_rate not in (0, o.learning_rate):
    raise errors.UserError(
      'config.optimizer.dense_learning_rate=0 is needed beside peers'
    )
  return {
    'kind': kind,
    'seed': config.seed,
    'threads': threads,
    'model': m.name,
    'dim': m.dim,
    'hidden': config_lib.sizes('model.hidden', m.hidden),
    'batch_norm': m.batch_norm,
    'optimizer': o.dense,
    'learning_rate': o.learning_rate,
    'epsilon': o.epsilon,
    'decay': o.decay,
    'dense_decay': o.dense_decay,
    'batch': config.train.batch_examples,
    'rows': len(parts.source.train),
    'fields': [x.name for x in fields.ids],
    'sizes': [x.num_ids for x in fields.ids],
    'first_ids': [x.first_id for x in fields.ids],
  }


def _peer(args, source: pathlib.Path, settings: dict) -> dict[str, np.ndarray]:
  """What train_torch.py found."""
  output = source.with_name(f'{settings["kind"]}.npz')
  script = pathlib.Path(__file__).with_name('train_torch.py')
  command = [args.peer_python, script, source, output, json.dumps(settings)]
  done = subprocess.run(command, capture_output=True, text=True)
  if done.returncode:
    line = ' '.join(done.stderr.strip().splitlines()[-1:])
    raise errors.UserError(f'the peer in {args.peer_python} failed: {line}')
  return dict(np.load(output))


# Cases.


def _same_steps(args, results) -> list[str]:
  rows = []
  for model in args.models:
    for optimizer in args.optimizers:
      settings = _settings(args, 1, model, optimizer)
      with tempfile.TemporaryDirectory() as folder:
        args_of = args, pathlib.Path(folder), settings, ('torch',)
        found = results.found[f'{model} {optimizer}'] = _beside(*args_of)
      results.save()
      own = found['jaxemb']
      for side, x in found.items():
        apart = x['log_loss'] - own['log_loss']
        rows.append([
          f'{model}, {optimizer}', side, x['auc'], x['log_loss'],
          *([None, None] if side == 'jaxemb' else [apart, x['apart']]),
          x['examples_per_sec'] / 1e3,
        ])  # fmt: skip
        if 'with_running_moments' in x:
          y = x['with_running_moments']
          apart = y['log_loss'] - own['log_loss']
          cells = y['auc'], y['log_loss'], apart
          rows.append(['', f'{side}, running moments', *cells])
  head = {
    'model, optimizer': '', '': '', 'AUC': '.5f', 'log loss': '.6f',
    'apart': '+.1e', 'most of a row': '.1e', 'k examples/s': '.1f',
  }  # fmt: skip
  return [experiment.table(head, rows)]


def _deepctr(args, results) -> list[str]:
  kinds, rows = ('deepctr', 'same_start'), []
  for model in args.models:
    runs = results.found.setdefault(model, {})

    def run(_, seed, folder, model=model):
      settings = _settings(args, seed, model, 'adam') | {
        # What deepctr-torch has by default, by the mean over a batch of 256.
        'optimizer.decay': 2e-5 / 256,
        'optimizer.dense_decay': 0.0,
        'optimizer.learning_rate': 1e-3,
        'train.batch_examples': 256,
        'data.valid': '',
      }
      return _beside(args, folder, settings, kinds)

    seeds = range(1, args.seeds + 1)
    experiment.add_runs(results, {model: runs}, [model], seeds, run)
    sides = next(iter(runs.values()))
    for side in sides:
      areas = [x[side]['auc'] for x in runs.values()]
      gains = [x['jaxemb']['auc'] - x[side]['auc'] for x in runs.values()]
      losses = [x[side]['log_loss'] for x in runs.values()]
      speeds = [x[side]['examples_per_sec'] for x in runs.values()]
      rows.append([
        model, side, statistics.mean(areas),
        ' '.join(f'{x:.5f}' for x in areas),
        None if side == 'jaxemb' else statistics.mean(gains),
        statistics.mean(losses), statistics.median(speeds) / 1e3,
      ])  # fmt: skip
  head = {
    'model': '', '': '', 'AUC': '.5f', 'seeds': '', 'jaxemb is better by':
    '+.5f', 'log loss': '.5f', 'k examples/s': '.1f',
  }  # fmt: skip
  return [experiment.table(head, rows)]


def main() -> None:
  """Makes the runs of a case and prints its tables."""
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('--case', choices=_CASES, default='same_steps')
  add('--config', default='', help='default: ctr, of deepctr ctr:adult')
  add(
    '--epochs', type=experiment.count, default=0, help='default: 1, deepctr 5'
  )
  add('--seeds', type=experiment.count, default=1)
  experiment.add_names(parser, '--models', _MODELS)
  experiment.add_names(parser, '--optimizers', _EPSILONS)
  add('--peer_python', default='')
  add('--threads', type=int, default=0, help='of the peers; 0 = as they choose')
  args = experiment.parse(parser)
  is_deepctr = args.case == 'deepctr'
  args.config = args.config or ('ctr:adult' if is_deepctr else 'ctr')
  args.epochs = args.epochs or (5 if is_deepctr else 1)
  results = experiment.Results(f'ctr-{args.case}', args, _FLAGS)
  tables_of = _deepctr if is_deepctr else _same_steps
  results.finish(*tables_of(args, results))


if __name__ == '__main__':
  experiment.main(main)
