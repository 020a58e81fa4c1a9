"""What training reads: sources of batches, whatever the data is."""
