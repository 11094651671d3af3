"""The compiled inner loops; see `core/module.c`, and `engine.Core` for what each method takes."""

from choreo.simulate.packets import twin

class Core(twin.Core): ...
