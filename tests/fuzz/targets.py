"""All readers that are fuzzed."""

from tests.fuzz import vector_targets

TARGETS = (*vector_targets.TARGETS,)
