"""Machines that this one is not."""

import socket

import pytest


@pytest.fixture
def without_ipv4(monkeypatch):
  """A function after which nothing can listen on an IPv4 address."""
  create = socket.create_server

  def create_without_ipv4(address, **more):
    if '.' in address[0]:
      raise OSError(99, 'Cannot assign requested address')
    return create(address, **more)

  return lambda: monkeypatch.setattr(
    socket, 'create_server', create_without_ipv4
  )
