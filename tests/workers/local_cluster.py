"""Shards in this process."""

import threading

from jaxemb.workers import remote, shards


class Cluster:
  """As `remote.Cluster`, for any number of threads."""

  def __init__(self):
    self.shards, self.lock, self.num_clients = {}, threading.Lock(), 0

  def table(
    self, name, num, rows, num_bytes, make, folder='', secs=0, num_added=0
  ):
    """See `remote.Cluster.table`."""
    with self.lock:
      args = num, rows, num_bytes, num_added
      made = [shards.Shard(i, *args) for i in range(num)]
      self.shards.setdefault(name, made)
      self.num_clients += 1
      client = str(self.num_clients)
    args = name, num, rows, num_bytes, make, self.call, client, list
    return remote.Sharded(*args)

  def call(self, requests):
    """See `remote.Call`."""
    with self.lock:
      return [
        {
          i: getattr(self.shards[x.table][i], x.method)(*y)
          for i, y in x.args.items()
        }
        for x in requests
      ]
