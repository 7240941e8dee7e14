"""Tables and figures of CUE: runs in several stages, scored sentence by sentence."""
