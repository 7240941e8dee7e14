"""Models that are made from each other in stages, and scored sentence by sentence: the tables and figures of CUE."""
