"""The compiled executor; `core` is its source, and `twin` says what everything takes."""

from choreo.run.execute import twin
from choreo.run.execute.twin import prepare_segment as prepare_segment

LAYOUT: dict[str, tuple[int, int]]
CONSTANTS: dict[str, int]

class Program(twin.Program): ...
class Endpoint(twin.Endpoint): ...
class CallCache(twin.CallCache): ...
