"""The life of a run: join, build, loop, evaluate, write results.

Read the modules in this order:

  lifecycle   `run`: the steps of a run, one after the other
  devices     the devices, and what settings leave open for them
  build       the parts: data, benchmarks, and what trains (`trainer`)
  loop        `train`: schedule, dispatch, count, evaluate, save, stop;
              `metrics` counts, `evaluation` is the hook that keeps the best
  results     export, scores and report, as `kind` says: by default `vectors`

`partition` and `workers` (with `worker`) train by the same loop in their own
way, `plan` compiles what would run elsewhere, `rundir` is the folder of a run.
"""
