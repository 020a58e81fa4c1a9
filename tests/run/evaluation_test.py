"""Which of several evaluations is the best, by each metric."""

import functools
import json
import types

import jax
import ml_dtypes
import numpy as np
import pytest

import jaxemb
from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.graphs import edge_source
from jaxemb.interactions import sources
from jaxemb.models import base
from jaxemb.run import evaluation, lifecycle, metrics, rundir, vectors
from jaxemb.storage import export

# AUC and log loss, as of a model that begins to learn rows by heart.
_SCORES = [(0.5, 0.7), (0.7, 0.5), (0.7, 0.4), (0.6, 0.3), (0.8, 0.6),
           (0.8, 0.6), (float('nan'), 0.9)]  # fmt: skip


class _Kind:
  monitors = 'auc', 'log_loss'

  def collect(self, parts, state, workdir):
    return types.SimpleNamespace(
      save=lambda folder: folder.write_text(str(state))
    )

  def evaluate(self, parts, model, is_last):
    area, loss = next(self.scores)
    return {'validation': {'auc': area, 'log_loss': loss}}

  def summarize(self, scores):
    return ''


@pytest.mark.parametrize(
  ('monitor', 'kept', 'factors', 'ends'),
  [
    # Of equal AUC the one with less loss is better; NaN replaces anything.
    ('auc', '6', [1, 1, 1, 0.5, 0.5, 0.25, 0.25], []),
    ('auc,log_loss', '63', [1, 1, 1, 0.5, 0.5, 0.25, 0.25], []),
    ('log_loss,auc', '36', [1, 1, 1, 1, 0.5, 0.25, 0.125], [5, 6]),
  ],
)
def test_each_metric_keeps_its_best_model(
  monitor, kept, factors, ends, tmp_path
):
  kind = _Kind()
  kind.scores = iter(_SCORES)
  values = {'eval.monitor': monitor, 'train.patience': 2,
            'optimizer.plateau_factor': 0.5}  # fmt: skip
  parts = types.SimpleNamespace(
    kind=kind,
    config=config_lib.load('ctr', values),
    source=types.SimpleNamespace(units_per_epoch=1),
  )
  kind.can_evaluate = kind.has_validation = lambda _: True
  hook = evaluation.Evaluation(tmp_path, parts)
  found, ended = [], []
  for i in range(len(_SCORES)):
    hook.run(i, metrics.Totals(steps=i, done=i))
    found.append(hook.rate_factor())
    ended += [i] if hook.has_ended() else []
  assert found == factors and ended == ends
  names = monitor.split(',')
  saved = [hook.best_folder(x) for x in names]
  assert [x.name for x in saved] == ['best', f'best_{names[-1]}'][: len(names)]
  assert ''.join(x.read_text() for x in saved) == kept
  assert {*tmp_path.iterdir()} == {*saved, tmp_path / 'evaluation.jsonl'}


def test_a_run_that_is_resumed_compares_the_same_metric(tmp_path):
  first, second = (
    config_lib.load('rec', {'eval.k': k}) for k in ('20', '1,20')
  )
  (tmp_path / 'config.json').write_text(json.dumps(first.to_dict()))
  rundir.check(first, tmp_path)
  with pytest.raises(errors.UserError, match=r"eval.k \('20' there, '1,20' n"):
    rundir.check(second, tmp_path)


class _Model(base.Model):
  """With what models have by default."""


def _leaves(exported):
  whole = exported._replace(rows=exported.rows.decode())
  leaves = jax.tree.leaves(whole._asdict())
  return [np.asarray(x) for x in leaves]


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16', 'int8'])
def test_a_saved_model_is_the_same_when_loaded(dtype, tmp_path):
  data = np.arange(-10, 11).reshape(7, 3)
  squares = export.OnDemand(lambda x: data[x, 0] / 4, (7,), np.dtype('float64'))
  saved = vectors.Export(
    keys=list('abcdefg'),
    counts=np.arange(7),
    rows=export.Encoded(
      data.astype(getattr(ml_dtypes, dtype, dtype)),
      np.arange(7, dtype=np.float32) if dtype == 'int8' else None,
    ),
    others={
      'context_vectors': data / 2,
      'optimizer': {'items': {'s': squares}},
    },
    context_keys=('r',),
  )
  assert not vectors.is_saved(tmp_path / 'best')
  saved.save(tmp_path / 'best')
  assert vectors.is_saved(tmp_path / 'best')
  trainable = types.SimpleNamespace(model=_Model())
  parts = types.SimpleNamespace(source=saved, trainable=trainable)
  loaded = vectors.load(parts, tmp_path / 'best')
  assert loaded.rows.dtype == saved.rows.dtype == dtype
  for read, kept in zip(*map(_leaves, (loaded, saved)), strict=True):
    np.testing.assert_array_equal(read, kept)


_KEPT = {
  'rec:bpr': (sources.Interactions, 'ndcg', 'valid'),
  'rec:item2vec': (sources.ItemSets, 'ndcg', 'valid'),
  'graph:relations': (edge_source.Edges, 'mrr', 'valid edges'),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', _KEPT)
def test_the_best_vectors_are_exported(name, tmp_path, monkeypatch):
  source, metric, split = _KEPT[name]
  rows, scores = [], [0.2, 0.5, 0.4, 0.5, 0.6]
  evaluate = source.evaluate

  @functools.wraps(evaluate)
  def scripted(self, vectors, *args, is_last, **options):
    found = evaluate(self, vectors, *args, is_last=is_last, **options)
    assert is_last or [*found] == [split]
    if not is_last:
      found[split][metric] = scores[len(rows)]
      rows.append(np.array(vectors))
    return found

  monkeypatch.setattr(source, 'evaluate', scripted)
  rng = np.random.default_rng(0)
  pairs = [f'u{i}\tv{j}\n' for i in range(40) for j in rng.permutation(30)[:12]]
  (tmp_path / 'pairs.tsv').write_text('source\ttarget\n' + ''.join(pairs))
  is_graph = source is edge_source.Edges
  columns = 'source,target' if is_graph else 'user:source,item:target'
  values = {
    'data.path': str(tmp_path / 'pairs.tsv'), 'data.valid': '0.2',
    'data.test': '0.1', 'data.columns': columns, 'model.dim': 4,
    'train.epochs': 9, 'eval.every_epochs': 1.0, 'train.patience': 2,
    'optimizer.plateau_factor': 0.5, 'mesh.data': 1,
  }  # fmt: skip
  config = config_lib.load(name, values)
  assert lifecycle.run(config, tmp_path / 'run') == 0
  report = json.loads((tmp_path / 'run' / 'report.json').read_text())
  assert len(rows) == 4 and len(report['evaluations']) == 4
  assert round(report['best']['epoch']) == 2
  exported = jaxemb.load(tmp_path / 'run')
  np.testing.assert_array_equal(exported.vectors, rows[1])
  page = (tmp_path / 'run' / 'report.html').read_text()
  assert 'the best of 4 evaluations on the validation split' in page
