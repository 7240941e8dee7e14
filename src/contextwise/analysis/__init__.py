"""Pure functions from tables to tables: scaling laws, fits, spectra, dimension, the best context."""
