"""What a run makes results of."""

import types

from jaxemb.run import results
from jaxemb.runtime import distributed


def test_a_best_model_that_was_being_replaced_is_completed(
  tmp_path, monkeypatch
):
  (tmp_path / '.replacement').mkdir()
  (tmp_path / '.replacement' / 'rows').touch()
  seen = []

  def is_saved(folder):
    seen.extend(x.name for x in folder.iterdir())
    return True

  parts = types.SimpleNamespace(kind=types.SimpleNamespace(is_saved=is_saved))
  hook = types.SimpleNamespace(
    metrics=['loss'],
    best=lambda metric: {'loss': 1},
    best_folder=lambda metric: tmp_path,
  )
  monkeypatch.setattr(distributed, 'is_first', lambda: False)
  results.finish(tmp_path, parts, state=None, totals=None, hook=hook)
  assert seen == ['rows']
