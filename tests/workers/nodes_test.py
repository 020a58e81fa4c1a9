"""Whether the head of a cluster answers."""

import socket
import time

import pytest

from jaxemb import errors
from jaxemb.workers import nodes, remote


def test_a_head_that_does_not_answer_is_lost(monkeypatch):
  monkeypatch.setattr(nodes, '_ASK_SECS', 0.01)
  monkeypatch.setattr(nodes, '_LOST_SECS', 0.2)
  monkeypatch.setattr(nodes, '_EXIT_SECS', 0.5)
  codes = []
  monkeypatch.setattr(nodes.os, '_exit', codes.append)
  with socket.create_server(('127.0.0.1', 0)) as server:
    address = f'127.0.0.1:{server.getsockname()[1]}'
    head = nodes.Head(address)
    time.sleep(0.6)
    head.check()
    assert not codes
  time.sleep(0.3)
  with pytest.raises(errors.LostError, match=f'{address} has not .* to resume'):
    head.check()
  time.sleep(0.4)
  head.close()
  assert set(codes) == {75}


def test_an_address_where_nobody_answers_is_one_line():
  with socket.create_server(('127.0.0.1', 0)) as server:
    port = server.getsockname()[1]
  for address in f'127.0.0.1:{port}', 'ray://127.0.0.1:10001', '6379':
    with pytest.raises(errors.UserError, match=f'{address}[^\n]*$'):
      remote.Cluster(address=address).num_cpus()


def test_a_folder_that_a_machine_lacks_is_named(tmp_path):
  nodes.check_file(tmp_path, '10.0.0.1')
  line = f'10.0.0.1 .* --workdir={tmp_path}; '
  with pytest.raises(errors.UserError, match=line):
    nodes.check_file(tmp_path / 'seen' / 'file', '10.0.0.1')
