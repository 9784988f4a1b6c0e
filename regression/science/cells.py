"""What an experiment is made of."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Cell:
    name: str  # folder of its runs: one cell may serve several experiments
    label: str
    scale: int | str  # of the delays, for the table
    settings: tuple  # section.key=value, on top of the deck
    rate: float  # middle of the grid of peak learning rates
    own: str = ""  # cell of the same method without delay
    paper: str = ""  # what the paper has, for the table
    rate_of: str = ""  # takes the best rate of this cell in place of a grid of its own
    deck: str = "delay.toml"
    ranks: int = 1  # processes, under mpiexec
    after: object = None  # function of the program and a run's folder: what it finds in the last checkpoint is kept


@dataclasses.dataclass(frozen=True)
class Experiment:
    title: str
    queue: tuple  # names of the cells to train, in this order
    rows: tuple = ()  # of the table, where these are others
    claims: tuple = ()  # (text, function of the results), see judge.py
    baseline: str = "adamw_d0"  # cell that all are compared with
    baseline_label: str = "plain AdamW without delay"
    steps: int = 0  # updates of its runs; 0: the usual number
