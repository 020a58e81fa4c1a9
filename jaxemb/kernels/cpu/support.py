"""What the kernels for CPUs can take; imports neither numba nor JAX."""

_MODELS = 'skipgram', 'cbow'
_LOSSES = 'negative_sampling', 'hierarchical_softmax'
_DTYPES = 'float32', 'bfloat16'
_OPTIMIZERS = 'sgd', 'adagrad'


def takes_steps(model: str, loss: str, dtype: str, optimizer: str) -> bool:
  """Whether a kernel takes whole steps, by names in the settings.

  A loss of the user's own is left to XLA.
  """
  return (
    model in _MODELS
    and loss in _LOSSES
    and dtype in _DTYPES
    and optimizer in _OPTIMIZERS
  )
