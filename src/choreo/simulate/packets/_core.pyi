"""The compiled inner loops; see `core/module.c`, and `engine.Core` for what each method takes."""

from choreo.simulate.packets.twin import core

class Core(core.Core): ...
