"""Tables and figures of intrinsic entropy: the parity task, spectra of real models, needles, RULER, the best context."""
