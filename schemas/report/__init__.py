"""What the packing report shows: one struct for each of its sections."""
