"""From run folders to tables and fits. Reads files only: nothing here needs a model or a GPU."""
