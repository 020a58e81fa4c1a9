"""Text of many forms, to batches of word ids."""
