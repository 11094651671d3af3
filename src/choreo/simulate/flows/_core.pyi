"""The compiled inner loops; see `core/module.c`, and `engine.Core` for what each method takes."""

from choreo.simulate.flows.twin import core as twin

class Core(twin.Core): ...
