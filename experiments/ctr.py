"""Steps of a click model: jaxemb beside plain torch and deepctr-torch.

  python experiments/ctr.py --rows=1e6
  python experiments/ctr.py --rows=1e6 --peer_python=/path/to/python

Wide&Deep of 26 fields x 16 and 13 numbers with layers 256 and 128, Adagrad,
4,096 examples a step, ids of a Zipf law: samples/s of each side, which take
turns. The peers run in a Python that has torch and deepctr-torch: torch with
sparse gradients, deepctr-torch as it trains by itself, with dense ones. jaxemb
and torch use a GPU where they find one; the examples lie in its memory. Prints
medians of several rounds, and the ratios within each.

  python experiments/ctr.py --rows=33.7e6 --write_log=FILE --examples=1e6

writes a log with such ids in Criteo's form, without anything to learn, to
measure what reads, trains on and predicts whole files.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time
import types
from collections.abc import Callable

import numpy as np

FIELDS, NUMBERS, DIM, HIDDEN, EXAMPLES = 26, 13, 16, (256, 128), 4096
STEPS = 16
_REST_SECS = 1.0  # threads of whoever ran before may spin for a while


def data(
  num_ids: int, seed: int = 0, examples: int = EXAMPLES
) -> tuple[np.ndarray, ...]:
  """Ids [n, fields] within each field, numbers [n, numbers], labels [n].

  They are those of `STEPS` steps of so many examples.
  """
  rng = np.random.default_rng(seed)
  num = STEPS * examples
  ids = rng.zipf(1.1, (num, FIELDS)) % num_ids
  numbers = rng.normal(size=(num, NUMBERS)).astype(np.float32)
  return ids, numbers, (rng.random(num) < 0.25).astype(np.float32)


def write_log(path: str, num_examples: int, num_ids: int) -> None:
  """Examples in Criteo's form: label, whole numbers, hexadecimal ids."""
  rng = np.random.default_rng(0)
  with open(path, 'w') as file:
    for first in range(0, num_examples, EXAMPLES):
      num = min(EXAMPLES, num_examples - first)
      labels = (rng.random(num) < 0.25).astype(int).tolist()
      numbers = rng.geometric(0.05, (num, NUMBERS)).tolist()
      ids = (rng.zipf(1.1, (num, FIELDS)) % num_ids).tolist()
      for label, some, own in zip(labels, numbers, ids, strict=True):
        words = [f'{x:08x}' for x in own]
        file.write('\t'.join([str(label), *map(str, some), *words]) + '\n')


def ours(
  num_ids: int, optimizer: str, step_examples: int = EXAMPLES
) -> Callable[[], None]:
  """Returns a function that trains for `STEPS` steps."""
  import jax

  from jaxemb import config as config_lib
  from jaxemb.config import kinds
  from jaxemb.data import examples
  from jaxemb.models import base as models
  from jaxemb.run import devices, trainer
  from jaxemb.runtime import mesh as mesh_lib
  from jaxemb.runtime import resources
  from jaxemb.strategies import base

  id_fields = [
    examples.IdField(f'C{i}', i * num_ids, num_ids, i) for i in range(FIELDS)
  ]
  names = tuple(f'I{i}' for i in range(NUMBERS))
  fields = examples.Fields(tuple(id_fields), names)
  lookups = np.full(fields.vocab, 1 / num_ids)
  source = types.SimpleNamespace(fields=fields)
  corpus = models.Corpus(
    keys=(), counts=lookups, centers=lookups, source=source
  )
  settings = {
    'data.source': 'clicks',
    'model.name': 'wide_deep',
    'strategy.name': 'sync',
    'model.dim': DIM,
    'model.hidden': ','.join(map(str, HIDDEN)),
    'optimizer.name': optimizer,
    'optimizer.dense': 'adagrad',
    'train.batch_examples': step_examples,
  }
  config = config_lib.check(config_lib.default(), settings)
  cores = resources.usable_cores()
  platform = jax.devices()[0].platform
  config, tuning = config_lib.resolve(config, platform, (1, 1), cores)
  steps = examples.Steps(step_examples, 1)
  mesh = mesh_lib.make(mesh_lib.Shape(1, 1))
  setup = devices.Setup(config, tuning, mesh, kinds.of(config))
  made = trainer.make(setup, corpus, steps)
  ids, numbers, labels = data(num_ids, examples=step_examples)
  ids = (ids + num_ids * np.arange(FIELDS)).astype(np.int32)
  counts = np.array([STEPS], np.int32), np.array([len(labels)], np.int32)
  batch = examples.Batch(ids[None], numbers[None], labels[None], *counts)
  strategy = made.strategy
  batch = jax.device_put(batch, strategy.batch_sharding)
  state, constants = strategy.init(jax.random.key(0)), strategy.constants()
  resources.use_huge_pages(state)
  rate = np.float32(0.01)
  schedule = base.Schedule(rate, rate, np.array([1, 2], np.uint32))
  program = strategy.step.lower(state, constants, batch, schedule).compile()

  def train():
    nonlocal state
    state, found = program(state, constants, batch, schedule)
    jax.block_until_ready(found)

  return train


_PEER = """
import sys, time, json, numpy as np, torch
from torch import nn
sys.path.insert(0, sys.argv[1])
import ctr
kind, num_ids = sys.argv[2], int(sys.argv[3])
size = int(sys.argv[5])
ids, numbers, labels = ctr.data(num_ids, examples=size)
on_gpu = kind == 'torch' and torch.cuda.is_available()
torch.set_default_device('cuda' if on_gpu else 'cpu')
torch.manual_seed(0)
torch.set_num_threads(int(sys.argv[4]))
x, y = torch.tensor(numbers), torch.tensor(labels)
if kind == 'torch':
  whole = torch.tensor(ids + num_ids * np.arange(ctr.FIELDS))
  rows = nn.Embedding(ctr.FIELDS * num_ids, ctr.DIM, sparse=True)
  wide = nn.Embedding(ctr.FIELDS * num_ids, 1, sparse=True)
  with torch.no_grad():
    rows.weight.uniform_(-.01, .01); wide.weight.zero_()
  width, layers = ctr.FIELDS * ctr.DIM + ctr.NUMBERS, []
  for hidden in ctr.HIDDEN:
    layers += [nn.Linear(width, hidden), nn.ReLU()]
    width = hidden
  deep = nn.Sequential(*layers, nn.Linear(width, 1))
  first = nn.Linear(ctr.NUMBERS, 1)
  params = [*rows.parameters(), *wide.parameters(), *deep.parameters(),
            *first.parameters()]
  optimizer = torch.optim.Adagrad(params, lr=.01)
  loss_of = nn.BCEWithLogitsLoss()
  def train():
    for i in range(ctr.STEPS):
      here = slice(i * size, (i + 1) * size)
      some = whole[here]
      flat = torch.cat([rows(some).flatten(1), x[here]], 1)
      odds = deep(flat)[:, 0] + wide(some).sum((1, 2)) + first(x[here])[:, 0]
      optimizer.zero_grad()
      loss_of(odds, y[here]).backward()
      optimizer.step()
    if on_gpu:
      torch.cuda.synchronize()
else:
  from deepctr_torch import inputs, models
  columns = [inputs.SparseFeat(f'C{i}', num_ids, ctr.DIM)
             for i in range(ctr.FIELDS)]
  columns += [inputs.DenseFeat(f'I{i}', 1) for i in range(ctr.NUMBERS)]
  model = models.WDL(columns, columns, ctr.HIDDEN, l2_reg_linear=0,
                     l2_reg_embedding=0)
  model.compile('adagrad', 'binary_crossentropy')
  given = {f'C{i}': ids[:, i] for i in range(ctr.FIELDS)}
  given |= {f'I{i}': numbers[:, i] for i in range(ctr.NUMBERS)}
  def train():
    model.fit(given, labels, batch_size=size, epochs=1, verbose=0,
              shuffle=False)
train()
for line in sys.stdin:
  start = time.perf_counter()
  train()
  print(json.dumps(time.perf_counter() - start), flush=True)
"""


class Peer:
  """A peer in a process of its own, which trains when it is told to."""

  def __init__(
    self,
    python: str,
    kind: str,
    num_ids: int,
    threads: int,
    step_examples: int = EXAMPLES,
  ):
    folder = str(pathlib.Path(__file__).parent)
    args = [folder, kind, *map(str, (num_ids, threads, step_examples))]
    self._process = subprocess.Popen(
      [python, '-c', _PEER, *args],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )

  def secs(self) -> float:
    """Seconds of `STEPS` steps."""
    self._process.stdin.write('\n')
    self._process.stdin.flush()
    for line in self._process.stdout:
      try:
        return json.loads(line)
      except json.JSONDecodeError:
        continue  # what the peer says
    sys.exit('the peer has ended; does its Python have torch, deepctr-torch?')

  def close(self) -> None:
    """Ends it."""
    self._process.stdin.close()
    self._process.wait()


def main() -> None:
  """Prints samples/s and ratios."""
  parser = argparse.ArgumentParser()
  add = parser.add_argument
  add('--rows', type=float, default=1e6)
  add('--optimizer', default='adagrad_full')
  add('--rounds', type=int, default=5)
  add('--threads', type=int, default=2)
  add('--peers', default='torch,deepctr')
  add('--peer_python', default='')
  add('--write_log', default='')
  add('--examples', type=float, default=1e6)
  flags = parser.parse_args()
  num_ids = int(flags.rows) // FIELDS
  if flags.write_log:
    write_log(flags.write_log, int(flags.examples), num_ids)
    return
  kinds = flags.peers.split(',') if flags.peer_python else []
  peers = {k: Peer(flags.peer_python, k, num_ids, flags.threads) for k in kinds}
  train, secs = ours(num_ids, flags.optimizer), {'jaxemb': []}
  train()
  for kind in kinds:
    secs[kind] = []
  for _ in range(flags.rounds):
    time.sleep(_REST_SECS)
    start = time.perf_counter()
    train()
    secs['jaxemb'].append(time.perf_counter() - start)
    for kind, peer in peers.items():
      time.sleep(_REST_SECS)
      secs[kind].append(peer.secs())
  for peer in peers.values():
    peer.close()
  size = STEPS * EXAMPLES
  for kind, found in secs.items():
    ratios = np.array(found) / secs['jaxemb']
    print(
      f'{kind:<8} {size / np.median(found) / 1e3:8.1f} k samples/s, '
      f'{1e3 * np.median(found) / STEPS:7.1f} ms a step; jaxemb is '
      f'{np.median(ratios):.2f} x as fast'
    )


if __name__ == '__main__':
  main()
