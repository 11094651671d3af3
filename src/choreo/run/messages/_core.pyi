"""The compiled words and copies; `core` is its source, and `words` says what everything takes."""

from choreo.run.messages import ring, words
from choreo.run.messages.words import address_of as address_of
from choreo.run.messages.words import copy as copy
from choreo.run.messages.words import memory_at as memory_at
from choreo.run.messages.words import read_process as read_process

class Words(words.Words): ...
class RingReader(ring.RingReader): ...
class RingWriter(ring.RingWriter): ...
