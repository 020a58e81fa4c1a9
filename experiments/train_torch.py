"""Trains a model of clicks in torch, for ctr_quality.py.

  python experiments/train_torch.py INPUT.npz OUTPUT.npz SETTINGS

INPUT has rows in the order in which jaxemb trained on them, rows to score, and
jaxemb's parameters before training. SETTINGS, in JSON, name the `kind`:

  torch       the same equations, from the same parameters, in the same steps
  deepctr     deepctr-torch as it is, with its own parameters and order
  same_start  deepctr-torch from the same parameters, in the same steps

OUTPUT gets probabilities, and what training took. This process imports nothing
of jaxemb, whose Python may have no torch.
"""

import contextlib
import itertools
import json
import sys
import time

import numpy as np
import torch
from torch import nn

_ADAGRAD = {'eps': 1e-10, 'initial_accumulator_value': 0.0}


class Plain(nn.Module):
  """DeepFM, or Wide&Deep without `pairs`, as jaxemb/clicks/models.py has it."""

  def __init__(self, given, settings):
    super().__init__()
    tables = [torch.tensor(given[k]) for k in ('vectors', 'weights')]
    self.vectors, self.weights = (
      nn.Embedding.from_pretrained(x, freeze=False) for x in tables
    )
    self.has_pairs, layers = settings['model'] == 'deepfm', []
    for i in itertools.count():
      at = f'deep/layers/layer_{i}'
      if f'{at}/kernel' not in given:
        break
      layers.append(_linear(given, at))
      if settings['batch_norm']:
        size = layers[-1].out_features
        layers.append(nn.BatchNorm1d(size, eps=1e-5))
      layers.append(nn.ReLU())
    self.deep = nn.Sequential(*layers, _linear(given, 'deep/output'))
    self.first = nn.Linear(given['numbers'].shape[1], 1)
    with torch.no_grad():
      self.first.bias[:] = torch.tensor(given['first/bias'])
      if 'first/slopes' in given:
        self.first.weight[0] = torch.tensor(given['first/slopes'])

  def tables(self):
    """Parameters of rows."""
    return [self.vectors.weight, self.weights.weight]

  def forward(self, ids, numbers):
    """[n] log odds."""
    vectors = self.vectors(ids)
    odds = self.deep(torch.cat([vectors.flatten(1), numbers], 1))[:, 0]
    odds = odds + self.weights(ids).sum((1, 2)) + self.first(numbers)[:, 0]
    if self.has_pairs:
      squares = vectors.square().sum((1, 2))
      odds = odds + 0.5 * (vectors.sum(1).square().sum(1) - squares)
    return odds


def _linear(given, at):
  kernel = torch.tensor(given[f'{at}/kernel']).T
  made = nn.Linear(kernel.shape[1], kernel.shape[0])
  with torch.no_grad():
    made.weight[:] = kernel
    made.bias[:] = torch.tensor(given[f'{at}/bias'])
  return made


def plain(given, settings):
  """Trains `Plain`; returns probabilities by name, and seconds."""
  model = Plain(given, settings)
  tables = model.tables()
  dense = [x for x in model.parameters() if all(x is not y for y in tables)]
  groups = [
    {'params': tables, 'weight_decay': settings['decay']},
    {'params': dense, 'weight_decay': settings['dense_decay']},
  ]
  optimizer = _optimizer(groups, settings)
  loss_of, size = nn.BCEWithLogitsLoss(), settings['batch']
  keys = 'ids', 'numbers', 'labels'
  ids, numbers, labels = (torch.tensor(given[k]) for k in keys)
  ids, num = ids.long(), settings['rows']
  start = time.perf_counter()
  for first in range(0, len(labels), num):  # of an epoch
    for begin in range(first, first + num, size):
      here = slice(begin, min(begin + size, first + num))
      optimizer.zero_grad()
      loss_of(model(ids[here], numbers[here]), labels[here]).backward()
      optimizer.step()
  secs = time.perf_counter() - start

  def scores():
    model.eval()
    rows = (torch.tensor(given[f'valid_{k}']) for k in keys[:2])
    with torch.no_grad():
      found = model(*(x.long() if x.dtype == torch.int32 else x for x in rows))
      return torch.sigmoid(found).numpy()

  found = {'running': scores()}
  if settings['batch_norm']:  # with moments of the rows that jaxemb takes
    norms = [x for x in model.modules() if isinstance(x, nn.BatchNorm1d)]
    for norm in norms:
      norm.reset_running_stats()
      norm.momentum = None  # means of all batches
    model.train()
    blocks = (torch.tensor(given[f'moment_{k}']) for k in keys[:2])
    with torch.no_grad():
      for some, more in zip(*blocks, strict=True):
        model(some.long(), more)
      for norm in norms:  # torch keeps unbiased variances, jaxemb the batch's
        norm.running_var *= 1 - 1 / len(some)
  return found | {'scores': scores()}, secs


def _optimizer(groups, settings):
  rate, epsilon = settings['learning_rate'], settings['epsilon']
  if settings['optimizer'] == 'adagrad':
    return torch.optim.Adagrad(groups, lr=rate, **_ADAGRAD)
  return torch.optim.Adam(groups, lr=rate, eps=epsilon)


def deepctr(given, settings):
  """Trains a model of deepctr-torch; returns probabilities, and seconds."""
  with contextlib.redirect_stdout(sys.stderr):
    from deepctr_torch import inputs, models
  names, sizes = settings['fields'], settings['sizes']
  columns = [
    inputs.SparseFeat(f'C{i}', size, settings['dim'])
    for i, size in enumerate(sizes)
  ]
  num_numbers = given['numbers'].shape[1]
  columns += [inputs.DenseFeat(f'I{i}', 1) for i in range(num_numbers)]
  # Its loss is a sum over a batch, and its L2 is not halved.
  scale, hidden = settings['batch'] / 2, settings['hidden']
  kind = models.DeepFM if settings['model'] == 'deepfm' else models.WDL
  model = kind(
    columns,
    columns,
    dnn_hidden_units=hidden,
    l2_reg_linear=settings['decay'] * scale,
    l2_reg_embedding=settings['decay'] * scale,
    l2_reg_dnn=settings['dense_decay'] * scale,
    dnn_use_bn=settings['batch_norm'],
    seed=settings['seed'],
  )
  firsts = np.array(settings['first_ids'])

  def columns_of(ids, numbers):
    columns = {f'C{i}': ids[:, i] - firsts[i] for i in range(len(names))}
    return columns | {f'I{i}': numbers[:, i] for i in range(num_numbers)}

  is_same = settings['kind'] == 'same_start'
  if is_same:
    _start_alike(model, given, firsts, sizes)
  optimizer = _optimizer(list(model.parameters()), settings)
  model.compile(optimizer, 'binary_crossentropy')
  num, total = settings['rows'], len(given['labels'])
  start = time.perf_counter()
  # One epoch at a time where each has its own order.
  for first in range(0, total if is_same else num, num):
    keys = 'ids', 'numbers', 'labels'
    ids, numbers, labels = (given[k][first : first + num] for k in keys)
    model.fit(
      columns_of(ids, numbers),
      labels,
      batch_size=settings['batch'],
      epochs=1 if is_same else total // num,
      verbose=0,
      shuffle=not is_same,
    )
  secs = time.perf_counter() - start
  rows = columns_of(given['valid_ids'], given['valid_numbers'])
  return {'scores': model.predict(rows, 4096)[:, 0]}, secs


def _start_alike(model, given, firsts, sizes):
  """Gives a model of deepctr-torch the parameters that jaxemb starts with.

  It has neither a bias of the last layer nor one of the first-order part, but
  one behind all, which starts at zero as those do.
  """
  with torch.no_grad():
    for i, (first, size) in enumerate(zip(firsts, sizes, strict=True)):
      rows = slice(first, first + size)
      for key, tables in (
        ('vectors', model.embedding_dict),
        ('weights', model.linear_model.embedding_dict),
      ):
        tables[f'C{i}'].weight[:] = torch.tensor(given[key][rows])
    if 'first/slopes' in given:
      model.linear_model.weight[:, 0] = torch.tensor(given['first/slopes'])
    for i, layer in enumerate(model.dnn.linears):
      at = f'deep/layers/layer_{i}'
      layer.weight[:] = torch.tensor(given[f'{at}/kernel']).T
      layer.bias[:] = torch.tensor(given[f'{at}/bias'])
    output = torch.tensor(given['deep/output/kernel']).T
    model.dnn_linear.weight[:] = output


def main(source: str, output: str, settings: str) -> None:
  """Trains by the settings, and writes what was found."""
  settings = json.loads(settings)
  torch.manual_seed(settings['seed'])
  if settings['threads']:
    torch.set_num_threads(settings['threads'])
  given = dict(np.load(source))
  train = plain if settings['kind'] == 'torch' else deepctr
  found, secs = train(given, settings)
  np.savez(output, secs=secs, **found)


if __name__ == '__main__':
  main(*sys.argv[1:])
