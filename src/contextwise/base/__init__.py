"""What every other package stands on: errors, files, settings, run folders, progress."""
