"""A cluster of Ray on one machine, whose nodes are namespaces of Linux.

Each node has an address, processes, shared memory and a host name of its own;
CPUs and files are those of the machine. A switch joins them, and links may be
limited. Everything ends with the process that made it, however that ends: a
shell is the first process of each node, and when it has nothing more to read
the kernel ends what runs there and removes its links.
"""

import contextlib
import os
import pathlib
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import psutil

from jaxemb import errors

_PROGRAMS = 'ip', 'tc', 'unshare', 'nsenter'
_PORT = 6379  # of Ray's head
# A limited link may send so much at once, and has a queue for so long.
_BURST_BYTES, _QUEUE_SECS = 1 << 18, 0.01


def missing() -> str:
  """Returns why this machine cannot have such nodes, or ''."""
  if not sys.platform.startswith('linux') or os.geteuid():
    return 'only root on Linux may make network namespaces'
  programs = [x for x in _PROGRAMS if not shutil.which(x)]
  return f'there is no program {", ".join(programs)}' if programs else ''


class _Shell:
  """A shell in namespaces of its own."""

  def __init__(self, *flags: str):
    """Flags of unshare."""
    self._process = subprocess.Popen(
      ['unshare', '--kill-child', *flags, 'sh', '-e'],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    self.run()
    self.pid = psutil.Process(self._process.pid).children()[0].pid

  def run(self, *commands: str) -> None:
    """Runs commands of the shell."""
    lines = '\n'.join([*commands, 'echo done', ''])
    try:
      self._process.stdin.write(lines)
      self._process.stdin.flush()
      is_done = self._process.stdout.readline() == 'done\n'
    except BrokenPipeError:
      is_done = False
    if not is_done:
      raise errors.UserError(f'cannot make a node: {" && ".join(commands)}')

  def close(self) -> None:
    """Ends it, and all processes of its namespaces."""
    self._process.kill()
    self._process.communicate()


class Cluster:
  """Nodes of Ray; the first is its head. A context: then they are gone."""

  def __init__(
    self,
    num_nodes: int,
    folder: pathlib.Path,
    link_gbits: float | None = None,
    num_cpus: int = 2,
    store_bytes: int = 1 << 27,
  ):
    """Starts Ray on all nodes, each with so many CPUs and bytes for objects.

    `folder` is for Ray's files. A node's link has `link_gbits` each way; None =
    as much as the CPUs can.
    """
    if problem := missing():
      raise errors.UserError(f'cannot make nodes of a cluster: {problem}')
    self._folder, self._link_gbits = folder, link_gbits
    self._num_cpus, self._store_bytes = num_cpus, store_bytes
    # Of programs that are to use it.
    self.environment = {
      'RAY_ADDRESS': f'{self.address(0)}:{_PORT}',
      'RAY_AUTH_MODE': 'token',
      'RAY_AUTH_TOKEN': secrets.token_hex(32),
    }
    self._nodes: list[_Shell] = []
    with contextlib.ExitStack() as stack:
      self._stack = stack
      self._switch = _Shell('--net')
      stack.callback(self._switch.close)
      self._switch.run(
        'ip link add switch type bridge', 'ip link set switch up'
      )
      for number in range(num_nodes):
        self._add(number)
      self._stack = stack.pop_all()

  def __enter__(self) -> 'Cluster':
    return self

  def __exit__(self, *error: Any) -> None:
    self._stack.close()

  def address(self, number: int) -> str:
    """Returns the address of a node."""
    return f'10.77.0.{number + 1}'

  def _add(self, number):
    """Adds a node, and starts Ray there."""
    node = _Shell('--net', '--pid', '--uts', '--mount', '--mount-proc')
    self._stack.callback(node.close)
    self._nodes.append(node)
    files = self._folder / f'node-{number}'
    for folder in (files, pathlib.Path('/tmp/ray')):
      folder.mkdir(parents=True, exist_ok=True)
    port = f'port{number}'
    self._switch.run(
      f'ip link add {port} type veth peer name eth0 netns {node.pid}',
      f'ip link set {port} master switch up',
      *self._limits(port),
    )
    node.run(
      f'echo node-{number} > /proc/sys/kernel/hostname',
      'mount -t tmpfs tmpfs /dev/shm',
      f'mount --bind {files} /tmp/ray',
      'ip link set lo up',
      f'ip addr add {self.address(number)}/24 dev eth0',
      'ip link set eth0 up',
      'ip route add default dev eth0',  # or Ray looks for another address
      *self._limits('eth0'),
    )
    flags = [f'--address={self.environment["RAY_ADDRESS"]}']
    if not number:
      flags = ['--head', f'--port={_PORT}', '--include-dashboard=false']
    subprocess.run(
      self.command(
        number,
        [
          *(sys.executable, '-m', 'ray.scripts.scripts', 'start', *flags),
          f'--node-ip-address={self.address(number)}',
          f'--num-cpus={self._num_cpus}',
          f'--object-store-memory={self._store_bytes}',
          '--disable-usage-stats',
        ],
        folder='/',
      ),
      env=os.environ | self.environment,
      check=True,
      stdout=subprocess.DEVNULL,
    )

  def _limits(self, device):
    """Returns commands that limit what a device sends."""
    if not self._link_gbits:
      return []
    return [
      f'tc qdisc add dev {device} root tbf rate {self._link_gbits}gbit '
      f'burst {_BURST_BYTES} latency {_QUEUE_SECS}s'
    ]

  def command(
    self, number: int, command: Sequence[str], folder: str = ''
  ) -> list[str]:
    """Returns a command that runs another on a node.

    In a folder; '' = this one.
    """
    where = f'--target={self._nodes[number].pid}'
    kinds = '--net', '--pid', '--uts', '--mount'
    return [
      *('nsenter', where, *kinds),
      *('env', f'--chdir={folder or pathlib.Path.cwd()}'),
      *command,
    ]

  def kill(self, number: int) -> None:
    """Ends a node as if its machine had lost power."""
    self._nodes[number].close()
