"""The life of a run: join, build, loop, evaluate, write results."""
