"""All readers that are fuzzed."""

from tests.fuzz import data_targets, vector_targets

TARGETS = (*vector_targets.TARGETS, *data_targets.TARGETS)
