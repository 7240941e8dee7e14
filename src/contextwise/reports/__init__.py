"""Reports: run folders, comparisons and measurements as one HTML page each, which opens from disk without a network."""
