"""How a sequence of ids tells where sentences end; needs no JAX."""

END = -1  # the id after a sentence
