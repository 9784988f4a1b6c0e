"""All experiments, in the order in which they are trained, and all their cells by name."""

import coherence
import delays
import forms
import hessian
import ladder
import refreshes

EXPERIMENTS = {**delays.EXPERIMENTS, **hessian.EXPERIMENTS, **refreshes.EXPERIMENTS, **coherence.EXPERIMENTS, **forms.EXPERIMENTS,
               **ladder.EXPERIMENTS}
CELLS = {**delays.CELLS, **hessian.CELLS, **refreshes.CELLS, **coherence.CELLS, **forms.CELLS,
         **ladder.CELLS}
