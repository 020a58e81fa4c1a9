"""What devices of a layout send in a step of skip-gram with SGD: a formula.

A ring of n devices sends an array of m bytes that all get in (n - 1) m bytes of
each device, a sum in 2 (n - 1) / n m, and one whose n parts change hands in
(n - 1) / n m.
"""

from jaxemb.run import trainer
from jaxemb.tables import row_sharded


def bytes_per_step(
  made: trainer.Trainer,
  layout: str,
  mesh: tuple[int, int],
  batch_words: int,
  num_parts: int = 1,
) -> float:
  """Of one device; mesh is (data, table), and rows need one round.

  The words of a step are of so many places in the text.
  """
  num_data, num_table = mesh
  spec = made.trainable.model.spec
  dim, chunk, window = spec.dim, spec.chunk, spec.window
  width, halo = chunk + 2 * window + spec.shared_negatives, 0
  if spec.tokens_once:  # and those beside each part
    width, halo = chunk + spec.shared_negatives, -(-2 * window // chunk)
  is_column = layout == 'column'
  num_shares = num_data if is_column else num_data * num_table
  centers, parts = batch_words / num_shares, max(1, num_parts / num_shares)
  num_chunks = centers / chunk + parts * halo
  lookups = {'input': centers, 'output': num_chunks * width}
  if layout == 'replicated':  # ids and gradients of all devices
    others = num_data * num_table - 1
    return sum(others * n * (4 + 4 * dim) for n in lookups.values())
  if is_column:
    scores = centers * (width + halo * chunk) * 4
    columns = -(-dim // num_table)
    gathered = sum(lookups.values()) * (4 + 4 * columns)
    sums = 2 * (num_table - 1) / num_table * scores
    return sums + (num_data - 1) * gathered
  total = 0.0
  for name, n in lookups.items():
    each = made.trainable.tables[name].spec.lookups_per_center
    rows = min(row_sharded.buffer_rows(each, centers, num_table), n)
    # Ids and rows; then ids, gradients and counts.
    fetched, written = 4 + 4 * dim, 4 + 4 * dim + 4
    total += (num_table - 1) * rows * (fetched + written)
    # Where data is divided, the holders of a row tell each other.
    total += (num_data - 1) * num_table * rows * written
    # Two rounds, of which each agrees on the place where it ends.
    num = num_data * num_table
    total += 2 * 2 * (num - 1) / num * 4
  return total
