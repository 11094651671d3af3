"""The compiled inner loops; see `core/module.c`, and `engine.Core` for what each method takes."""

from choreo.simulate.flows import twin

class Core(twin.Core): ...
