r"""GraphSAGE: accuracy and sampling beside plain torch, DGL and PyG.

  python experiments/graphsage.py --case=accuracy --seeds=10 \
    --config.data.path=cora.npz --peer_python=/path/to/python
  python experiments/graphsage.py --case=sampling --peer_python=/path/to/python

accuracy: of the test nodes at the best epoch by the validation nodes, for each
seed, which draws the split too. The peers have the same split, layers,
optimizer and epochs, and learn on the whole graph; jaxemb on sampled neighbors.

sampling: trees a second with (10, 25) neighbors, on --edges random ones of
--nodes, without and with replacement; DGL's blocks have each node of a layer
once, jaxemb's trees one place for each draw.

The peers run in a Python that has torch and DGL 1.1.3 or PyTorch Geometric
(`pip install torch_geometric`); --peers names them: torch,dgl,pyg. PyG learns
on the whole graph too, as the wheel that its NeighborLoader needs is not there
for every torch. Without --peer_python there is jaxemb alone.
"""

import csv
import json
import pathlib
import subprocess
import tempfile
import time

import experiment
import numpy as np

from jaxemb import errors
from jaxemb.graphs import files, neighbors
from jaxemb.runtime import resources

_CASES = 'accuracy', 'sampling'
_PEERS = 'torch', 'dgl', 'pyg'
_FANOUTS = 10, 25
_RATES = 'seeds_per_sec', 'seeds_per_cpu_sec'
_SPLITS = 'train', 'valid', 'test'

_ACCURACY = """
import json, sys, numpy as np, torch
from torch import nn
kind, path, epochs, hidden, rate, decay, dropout = sys.argv[1:8]
epochs, hidden = int(epochs), int(hidden)
arrays, seed = np.load(path), int(sys.argv[8])
torch.manual_seed(seed)
torch.set_num_threads(1)
x = torch.tensor(arrays['features'])
labels = torch.tensor(arrays['labels'])
offsets, others = (torch.tensor(arrays[k]) for k in ('offsets', 'neighbors'))
nodes = torch.repeat_interleave(torch.arange(len(x)), offsets.diff())
used = arrays['used']
train, valid, test = (torch.tensor(used == i) for i in range(3))
num_classes = int(labels.max()) + 1
degrees = offsets.diff().clamp(min=1).float()[:, None]


class Layer(nn.Module):
  def __init__(self, before, after):
    super().__init__()
    self.own = nn.Linear(before, after)
    self.neighbors = nn.Linear(before, after, bias=False)
    for layer in (self.own, self.neighbors):
      nn.init.xavier_uniform_(layer.weight, nn.init.calculate_gain('relu'))

  def forward(self, graph, x):
    x, sent = self.own(x), self.neighbors(x)
    total = torch.zeros_like(sent).index_add_(0, nodes, sent[others.long()])
    return x + total / degrees


graph = None
if kind == 'dgl':
  import dgl
  # Messages go from neighbors to nodes.
  graph = dgl.graph((others.long(), nodes), num_nodes=len(x))
  Layer = lambda a, b: dgl.nn.SAGEConv(a, b, 'mean')
elif kind == 'pyg':
  import torch_geometric

  class Layer(torch_geometric.nn.SAGEConv):
    def forward(self, graph, x):
      return super().forward(x, torch.stack([others.long(), nodes]))


first = Layer(x.shape[1], hidden)
second = Layer(hidden, num_classes)
drop = nn.Dropout(float(dropout))
network = nn.ModuleList([first, second, drop])
optimizer = torch.optim.Adam(
  network.parameters(), float(rate), weight_decay=float(decay)
)


def outputs():
  h = drop(torch.relu(first(graph, drop(x))))
  return second(graph, h)


best = -1, 0
for epoch in range(epochs):
  network.train()
  optimizer.zero_grad()
  loss = nn.functional.cross_entropy(outputs()[train], labels[train])
  loss.backward()
  optimizer.step()
  network.eval()
  with torch.no_grad():
    right = (outputs().argmax(1) == labels).float()
  score = right[valid].mean().item()
  if score > best[0]:
    best = score, right[test].mean().item()
print(json.dumps(best))
"""

_SAMPLING = """
import json, sys, time, numpy as np, torch, dgl
path, batch, rounds, threads = sys.argv[1], *map(int, sys.argv[2:5])
torch.set_num_threads(threads)
arrays = np.load(path)
offsets, others = (torch.tensor(arrays[k]) for k in ('offsets', 'neighbors'))
graph = dgl.graph(('csc', (offsets, others.long(), [])))
rng, fanouts = np.random.default_rng(0), list(map(int, sys.argv[5].split(',')))
for line in sys.stdin:
  replaces = line.strip() == 'True'
  sampler = dgl.dataloading.NeighborSampler(fanouts, replace=replaces)
  seeds = torch.tensor(rng.choice(len(offsets) - 1, batch, replace=False))
  start, used = time.perf_counter(), time.process_time()
  for _ in range(rounds):
    sampler.sample_blocks(graph, seeds)
  used = time.process_time() - used
  print((time.perf_counter() - start) / rounds, used / rounds, flush=True)
"""


def _accuracy(args, seed, folder, results):
  """Of jaxemb and the peers, by name."""
  workdir = folder / f'run-{seed}'
  report = experiment.train(args, workdir, {'seed': seed})
  evaluation = report['evaluation']
  found = {
    'jaxemb': {
      'validation': evaluation['validation']['accuracy'],
      'test': evaluation['test']['accuracy'],
      'train_secs': report['train_secs'],
    }
  }
  if args.peer_python:
    path = folder / 'graph.npz'
    config = report['config']
    _write_graph(config, workdir, path)
    m, o = config['model'], config['optimizer']
    given = config['train']['epochs'], m['hidden'], o['learning_rate']
    given = (*given, o['dense_decay'], m['dropout'], seed)
    for peer in args.peers:
      flags = [peer, path, *given]
      best = json.loads(_call(args.peer_python, _ACCURACY, flags))
      found[peer] = {'validation': best[0], 'test': best[1]}
  experiment.progress(seed, {k: x['test'] for k, x in found.items()})
  results[str(seed)] = found


def _write_graph(config, workdir, path) -> None:
  """Writes the graph with the split that a run has drawn."""
  graph = files.read(config['data'], path.parent, lambda *_: None)
  features = np.asarray(graph.features, np.float32)
  if config['data']['normalize']:
    sums = np.abs(features).sum(1, keepdims=True)
    features = features / np.maximum(sums, 1e-12)
  with (workdir / 'export' / 'classes.tsv').open(encoding='utf-8') as file:
    rows = list(csv.DictReader(file, delimiter='\t'))
  used = [_SPLITS.index(x['used']) if x['used'] else -1 for x in rows]
  np.savez(
    path,
    features=features,
    labels=np.asarray(graph.labels.classes, np.int64),
    offsets=graph.offsets,
    neighbors=graph.neighbors,
    used=np.array(used),
  )


def _call(python, program, flags) -> str:
  """The last line that a peer prints."""
  command = [python, '-c', program, *map(str, flags)]
  done = subprocess.run(command, capture_output=True, text=True)
  if done.returncode:
    raise errors.UserError(
      f'the peer has ended: {done.stderr.strip().splitlines()[-1]}'
    )
  return done.stdout.strip().splitlines()[-1]


def _random_graph(num_nodes, num_edges):
  """Offsets and neighbors of edges between any nodes."""
  rng = np.random.default_rng(0)
  degrees = np.bincount(rng.integers(0, num_nodes, num_edges),
                        minlength=num_nodes)  # fmt: skip
  offsets = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
  return offsets, rng.integers(0, num_nodes, num_edges, np.int32)


def _sampling(args, folder):
  """Seeds a second by side, in turns; the ratio of DGL's time to ours."""
  graph, found = _random_graph(int(args.nodes), int(args.edges)), {}
  threads, peer = args.threads or resources.usable_cores(), None
  if args.peer_python:
    path = folder / 'graph.npz'
    np.savez(path, offsets=graph[0], neighbors=graph[1])
    flags = path, args.batch, args.repeats, threads
    text = ','.join(map(str, _FANOUTS))
    command = [args.peer_python, '-c', _SAMPLING, *map(str, flags), text]
    peer = subprocess.Popen(
      command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
  rng, places = np.random.default_rng(0), np.arange(args.batch)
  for replaces in (False, True):
    secs = {'jaxemb': [], 'dgl': []}
    for i in range(1 + args.rounds):  # the first one compiles
      nodes = rng.choice(int(args.nodes), args.batch, False).astype(np.int32)
      start, used = time.perf_counter(), time.process_time()
      for j in range(args.repeats):
        key = np.uint64(i * args.repeats + j)
        trees = neighbors.Trees(*graph, _FANOUTS[::-1], replaces, threads)
        trees.sample(nodes, places, key)
      used = time.process_time() - used, time.perf_counter() - start
      secs['jaxemb'].append([x / args.repeats for x in used[::-1]])
      if peer:
        print(replaces, file=peer.stdin, flush=True)
        secs['dgl'].append([float(x) for x in peer.stdout.readline().split()])
    secs = {k: np.array(x[1:]) for k, x in secs.items() if x}
    shown = {}
    for k, x in secs.items():
      rates = args.batch / np.median(x, 0)
      shown[k] = dict(zip(_RATES, map(float, rates), strict=True))
    if peer:
      ratios = np.median(secs['dgl'] / secs['jaxemb'], 0)
      shown['jaxemb is faster by'] = dict(
        zip(_RATES, map(float, ratios), strict=True)
      )
    name = 'with replacement' if replaces else 'without replacement'
    found[name] = shown
    experiment.progress(name, shown)
  if peer:
    peer.stdin.close()
    peer.wait()
  return found


def main() -> None:
  """Parses flags, runs a case, writes results."""
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('--case', choices=_CASES, default='accuracy')
  add('--config', default='graphsage')
  add('--seeds', type=experiment.count, default=10)
  experiment.add_names(parser, '--peers', _PEERS)
  add('--peer_python', default='')
  add('--nodes', type=float, default=1e6)
  add('--edges', type=float, default=1e7)
  add('--threads', type=int, default=0, help='of sampling; 0 = all cores')
  add('--batch', type=experiment.count, default=1024)
  add('--rounds', type=experiment.count, default=7)
  add('--repeats', type=experiment.count, default=8)
  args = experiment.parse(parser)
  results = experiment.Results(f'graphsage_{args.case}', args)
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    if args.case == 'sampling':
      results.found |= _sampling(args, folder)
    else:
      by_seed = results.found.setdefault('by_seed', {})
      for seed in range(1, args.seeds + 1):
        _accuracy(args, seed, folder, by_seed)
        results.save()
      _summarize(results.found, by_seed)
  results.finish()


def _summarize(found, by_seed) -> None:
  """Means and deviations over seeds, and of the differences from jaxemb."""
  for name in next(iter(by_seed.values())):
    tests = np.array([x[name]['test'] for x in by_seed.values()])
    ours = np.array([x['jaxemb']['test'] for x in by_seed.values()])
    found[name] = {
      'mean': float(tests.mean()),
      'deviation': float(tests.std(ddof=len(tests) > 1)),
      'jaxemb_is_better_by': float((ours - tests).mean()),
    }
    experiment.progress(name, found[name])


if __name__ == '__main__':
  experiment.main(main)
