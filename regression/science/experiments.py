"""All experiments, in the order in which they are trained, and all their cells by name."""

import delays
import forms
import hessian
import refreshes

EXPERIMENTS = {**delays.EXPERIMENTS, **hessian.EXPERIMENTS, **refreshes.EXPERIMENTS, **forms.EXPERIMENTS}
CELLS = {**delays.CELLS, **hessian.CELLS, **refreshes.CELLS, **forms.CELLS}
