"""Devices: the only place that chooses them."""

import jax


def training_device() -> jax.Device:
  """The device that a run on one device uses."""
  return jax.local_devices()[0]


def name(device: jax.Device) -> str:
  """A device as reports name it."""
  return f'{device.platform}:{device.id} {device.device_kind}'


def describe() -> str:
  """One line on processes, devices and what is used of them."""
  devices = jax.devices()
  used = training_device()
  return (
    f'process {jax.process_index() + 1} of {jax.process_count()}, '
    f'{len(devices)} device(s) of kind {used.device_kind}; '
    f'training on {used.platform}:{used.id}'
  )
