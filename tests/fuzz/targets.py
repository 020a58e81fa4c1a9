"""All readers that are fuzzed."""

from tests.fuzz import data_targets, run_targets, vector_targets

TARGETS = (
  *vector_targets.TARGETS,
  *run_targets.TARGETS,
  *data_targets.TARGETS,
)
