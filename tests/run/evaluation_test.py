"""Which of several evaluations is the best, by each metric."""

import types

import pytest

from jaxemb import config as config_lib
from jaxemb.run import evaluation, metrics

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
  kind.can_evaluate = lambda _: True
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
