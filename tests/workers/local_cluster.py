"""Shards in this process."""

import threading

import numpy as np

from jaxemb.workers import remote, shards


def newer(table, request, results):
  """Joins what shards return for a request of newer rows."""
  *arrays, missed, most = zip(
    *table.newer_of_shards(request, results), strict=True
  )
  joined = map(np.concatenate, arrays)
  return shards.Newer(*joined, missed=sum(missed), most_missed=max(most))


class Cluster:
  """As `remote.Cluster`, for any number of threads."""

  def __init__(self, is_near=False):
    self.is_near = is_near
    self.shards, self.lock, self.num_clients = {}, threading.Lock(), 0

  def table(
    self, name, num, rows, num_bytes, make, folder='', secs=0, num_added=0
  ):
    """See `remote.Cluster.table`."""
    with self.lock:
      args = num, rows, num_bytes, num_added, make
      made = [shards.Shard(i, *args) for i in range(num)]
      self.shards.setdefault(name, made)
      self.num_clients += 1
      client = self.num_clients
    args = name, num, rows, num_bytes, make, self.call, client, list
    return remote.Sharded(*args, is_near=lambda: self.is_near)

  def call(self, requests):
    """See `remote.Call`."""
    with self.lock:
      return [
        {i: self._call(x, i, y) for i, y in x.args.items()} for x in requests
      ]

  def _call(self, request, number, args):
    result = getattr(self.shards[request.table][number], request.method)(*args)
    if isinstance(result, shards.Newer):  # or another thread's is there next
      return result._replace(records=result.records.copy())
    return result
