"""Tables and figures of CUE: runs that are made from other runs, scored sentence by sentence."""
