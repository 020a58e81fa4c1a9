"""Exchanges beside the steps: late meetings of replicas, hidden on CPUs.

On a CPU XLA runs the loops of a program one after the other, and the programs
of a device too. Here a device of its own in each process, which JAX simulates
as it does the others, adds up what replicas have handed over, while these take
the steps to the next meeting. The results are those of one program for all.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxemb.strategies import base


class Stages(NamedTuple):
  """What happens between two meetings, each a compiled function."""

  count: Callable[..., jax.Array]  # batch -> int32, steps of a dispatch
  empty: Callable[..., Any]  # () -> what replicas have measured: nothing
  # (trained, measured, constants, batch, schedule, first, stop, count) ->
  # (trained, measured)
  steps: Callable[..., tuple[Any, Any]]
  # (met, handover, number of meetings, constants) -> what arrives
  add_up: Callable[..., Any]
  # (state, what arrived, constants, schedule, stop, count) -> state
  settle: Callable[..., Any]
  # (measured, steps since a meeting, batch, count) ->
  # (`base.DispatchMetrics`, steps since a meeting)
  finish: Callable[..., tuple[base.DispatchMetrics, jax.Array]]


@dataclasses.dataclass(frozen=True)
class Pipeline:
  """`strategies.base.Strategy.step`, before it is compiled or after.

  Its `constants` end with those of `Stages.add_up`, on the other devices.
  """

  stages: Stages
  every_steps: int
  mesh: jax.sharding.Mesh
  others: jax.sharding.Mesh  # of the same shape
  # What was handed over last, and what will arrive of it, on the others; what
  # was met last, here and on the others.
  arriving: list[Any] = dataclasses.field(default_factory=list)
  met: list[Any] = dataclasses.field(default_factory=list)

  def lower(
    self, state: Any, constants: Any, batch: Any, schedule: base.Schedule
  ) -> 'Pipeline':
    """The same, as `jax.jit` has it."""
    *own, on_others = constants
    measured, number = self.stages.empty.eval_shape(), np.int32(0)
    numbers = number, number, number

    def on(mesh, tree, spec=None):
      def shape(x):
        here = x.sharding.spec if spec is None else spec
        sharding = jax.sharding.NamedSharding(mesh, here)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

      return jax.tree.map(shape, tree)

    sent = state.met, state.handover, state.num_meetings
    sent = *on(self.others, sent), on_others
    arrived = self.stages.add_up.eval_shape(*sent)
    arrived = on(self.mesh, arrived, jax.sharding.PartitionSpec())
    args = (
      (batch,),
      (),
      (state.trained(), measured, own, batch, schedule, *numbers),
      sent,
      (state, arrived, own, schedule, *numbers[1:]),
      (measured, state.num_steps, batch, number),
    )
    lowered = (
      stage.lower(*x) for stage, x in zip(self.stages, args, strict=True)
    )
    return dataclasses.replace(self, stages=Stages(*lowered))

  def compile(self) -> 'Pipeline':
    """The same, once lowered."""
    compiled = (stage.compile() for stage in self.stages)
    return dataclasses.replace(self, stages=Stages(*compiled))

  def as_text(self) -> str:
    """The program that exchanges rows."""
    return self.stages.add_up.as_text()

  def memory_analysis(self) -> Any:
    """What the compiled steps need."""
    return self.stages.steps.memory_analysis()

  def __call__(
    self, state: Any, constants: Any, batch: Any, schedule: base.Schedule
  ) -> tuple[Any, base.DispatchMetrics]:
    """Runs all steps of a dispatch."""
    *own, on_others = constants
    count, measured = int(self.stages.count(batch)), self.stages.empty()
    first, stop = 0, max(0, self.every_steps - int(state.num_steps))

    def steps(state, measured, *numbers):
      args = state.trained(), measured, own, batch, schedule
      numbers = map(np.int32, (*numbers, count))
      trained, measured = self.stages.steps(*args, *numbers)
      return state._replace(**trained._asdict()), measured

    self._send(state, on_others)
    while stop <= count:
      state, measured = steps(state, measured, first, stop)
      _, there = self.arriving
      arrived = jax.tree.map(lambda x: self._move(x, self.mesh), there)
      state = self.stages.settle(
        state, arrived, own, schedule, np.int32(stop), np.int32(count)
      )
      self.met[:] = state.met, there.met
      self._send(state, on_others)
      first, stop = stop, stop + self.every_steps
    if first < count:
      state, measured = steps(state, measured, first, count)
    metrics, num_steps = self.stages.finish(
      measured, state.num_steps, batch, count=np.int32(count)
    )
    return state._replace(num_steps=num_steps), metrics

  def _send(self, state, on_others):
    """Exchanges what was handed over, unless that is on its way."""
    if self.arriving and self.arriving[0] is state.handover:
      return

    def moved(tree):
      return jax.tree.map(lambda x: self._move(x, self.others), tree)

    has_met = self.met and self.met[0] is state.met
    met = self.met[1] if has_met else moved(state.met)
    sent = moved((state.handover, state.num_meetings))
    arrived = self.stages.add_up(met, *sent, on_others)
    self.arriving[:] = state.handover, arrived

  def _move(self, x, mesh):
    """The array on the devices of another mesh, copied within the process."""
    old = self.others if mesh is self.mesh else self.mesh
    there = dict(zip(old.devices.flat, mesh.devices.flat, strict=True))
    return jax.make_array_from_single_device_arrays(
      x.shape,
      jax.sharding.NamedSharding(mesh, x.sharding.spec),
      [jax.device_put(s.data, there[s.device]) for s in x.addressable_shards],
    )
