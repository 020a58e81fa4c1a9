"""Tables larger than the device: caches and stores."""
