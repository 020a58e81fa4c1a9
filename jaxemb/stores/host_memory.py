"""The memory of hosts that tables in stores take, as it is known before a run.

A process has what it had before it had tables (its base, which is measured),
and with them

  device    slots of tables, where the device's memory is that of the host
  maps      which rows have which slots (`tables.cache`)
  copies    of a worker: rows as they were read, and their clocks
  store     rows, once all were trained; of files, what stays mapped
  snapshot  what is on its way to a file
  messages  between shards and who trains, beside those in Ray's object store
  data      of a file that is mapped, as text is: pages that were read
  steps     temporary arrays, and batches
  dense     of the desk of workers: parameters, in lockstep with their optimizer
            before and after a step, and otherwise as each worker was given them
  programs  and what runs them, which are the same with tables of any size; most
            is measured once they are compiled
"""

from typing import NamedTuple

import jax

from jaxemb.stores import device_rows, fetching
from jaxemb.stores import local as stores
from jaxemb.strategies import base as strategy_base
from jaxemb.workers import copies, shards

WORKER_BYTES = 500_000_000  # of a new process, before there are tables
_PROGRAM_BYTES = 160_000_000  # that are to be compiled
_RUNNING_BYTES = 30_000_000  # once they are: threads, an evaluation
# One that adds to its rows, for workers, has a program for it.
_DESK_PROGRAM_BYTES = 100_000_000  # of few arrays 85 MB, of more 112
_SHARD_PROGRAM_BYTES, _ADDING_BYTES = 30_000_000, 30_000_000
# Of the rows of a round: as they come, and in order; as they are taken, and by
# shard. Where they belong to one process, it also makes arrays of records, and
# records of arrays. In a shard, of what it takes from its rows.
_COPIES, _RECORD_COPIES = 4, 2


class Memory(NamedTuple):
  """Bytes of a process."""

  base: int
  device: int = 0
  maps: int = 0
  copies: int = 0
  store: int = 0
  snapshot: int = 0
  messages: int = 0
  data: int = 0
  steps: int = 0
  dense: int = 0
  programs: int = 0

  @property
  def more(self) -> int:
    """Than it had before, but for `data`, which goes when memory is needed."""
    return sum(self[1:]) - self.data


def _round_bytes(store, step_words):
  records = store.rows.records
  return sum(
    int(x.needs.sum() * records[k].num_bytes)
    for k, x in store.predicted(step_words).items()
  )


def of_trainer(
  store: fetching.Fetching,
  kind: str,
  step_words: int,
  base: int,
  data: int = 0,
  programs: fetching.Programs | None = None,
) -> Memory:
  """Of a process that trains, with a store of a kind in the settings.

  `data` are the bytes that it has mapped; `programs` what is known of these,
  None before they are compiled.
  """
  device = held = 0
  if device_rows.are_in_memory():
    state = jax.eval_shape(store.trainable.init, jax.random.key(0))
    leaves = jax.tree.leaves(state)
    device = sum(x.size * x.dtype.itemsize for x in leaves)
  vocabs = {k: x.spec.vocab for k, x in store.tables.items()}
  slots = {k: x.slots.spec.vocab for k, x in store.tables.items()}
  records, maps = store.rows.records, sum(x.num_bytes for x in store.caches)
  snapshot = 0
  if store.rows.is_shared:
    held = sum(
      copies.num_bytes(vocabs[k], slots[k], x.num_bytes)
      for k, x in records.items()
    )
  sizes = [(vocabs[k], x.num_bytes) for k, x in records.items()]
  rows = messages = 0
  if kind == 'remote':
    num = _COPIES + (0 if store.rows.is_shared else _RECORD_COPIES)
    messages = num * _round_bytes(store, step_words)
  if kind in ('memory', 'disk'):
    snapshot = max(stores.snapshot_bytes(*x) for x in sizes)
    rows = stores.resident_bytes(sizes, kind == 'disk')
  step_bytes, program_bytes = 0, _PROGRAM_BYTES
  if programs:
    step_bytes = programs.step_bytes if device_rows.are_in_memory() else 0
    compiled = programs.rss_bytes - base - device - maps
    program_bytes = max(0, compiled) + _RUNNING_BYTES
  return Memory(
    base=base,
    device=device,
    maps=maps,
    copies=held,
    store=rows,
    snapshot=snapshot,
    messages=messages,
    data=data,
    steps=step_bytes,
    programs=program_bytes,
  )


def of_desk(
  trainable: strategy_base.Trainable,
  num_workers: int,
  is_lockstep: bool,
  base: int,
) -> Memory:
  """Of the process that has the dense parameters of workers."""
  state = jax.eval_shape(trainable.init, jax.random.key(0))
  params, optimizer = (
    sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
    for tree in state[1:]
  )
  if is_lockstep:  # a step, and a sum of gradients and its copy
    dense = 2 * (params + optimizer) + 2 * params
    return Memory(base, dense=dense, programs=_DESK_PROGRAM_BYTES)
  # Those of now, and of a push two on the way to them. What workers send,
  # optimizers among it, is in Ray's object store.
  return Memory(base, dense=(num_workers + 3) * params)


def of_shard(
  store: fetching.Fetching, num_shards: int, step_words: int, base: int
) -> Memory:
  """Of the process that has the shards of all tables with one number."""
  adds = int(store.rows.is_shared)
  sizes = [
    (
      -(-store.tables[k].spec.vocab // num_shards),
      shards.CLOCK_BYTES + x.num_bytes,
    )
    for k, x in store.rows.records.items()
  ]
  return Memory(
    base,
    store=stores.resident_bytes(sizes, False),
    snapshot=max(stores.snapshot_bytes(*x) for x in sizes),
    messages=(1 + adds) * _round_bytes(store, step_words) // num_shards,
    programs=_SHARD_PROGRAM_BYTES + adds * _ADDING_BYTES,
  )
