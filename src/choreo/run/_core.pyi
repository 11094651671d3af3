"""The compiled executor; see `_core.c`, and `twin` for what everything takes."""

from choreo.run import twin
from choreo.run.twin import prepare as prepare

class Program(twin.Program): ...
class Endpoint(twin.Endpoint): ...
