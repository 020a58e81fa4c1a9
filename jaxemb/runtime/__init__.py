"""Where a run runs: devices, processes, resources, compiled programs."""
