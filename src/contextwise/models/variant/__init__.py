"""A model of the user's own: a class or a function in a Python file that a recipe names."""
