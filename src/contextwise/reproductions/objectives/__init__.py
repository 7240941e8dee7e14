"""Exercises and tables of the objectives document."""
