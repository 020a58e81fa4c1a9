"""Words with several vectors, until callers use `evaluation.multivectors`."""

from jaxemb.evaluation import multivectors

Senses, read, write = (
  multivectors.MultiVectors, multivectors.read, multivectors.write
)  # fmt: skip
