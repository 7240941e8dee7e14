"""Base of all other packages: errors, files, settings, run folders, progress, estimates, tables."""
