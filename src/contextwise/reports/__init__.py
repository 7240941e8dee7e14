"""Reports: run folders, comparisons, sweeps and measurements as one HTML page each, which opens from disk without a network."""
