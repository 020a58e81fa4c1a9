"""How the state advances from batch to batch."""
