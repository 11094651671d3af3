"""The compiled words and copies; `core` is its source, and `words` says what everything takes."""

from choreo.run.messages import words
from choreo.run.messages.words import address_of as address_of
from choreo.run.messages.words import copy as copy
from choreo.run.messages.words import read_process as read_process

class Words(words.Words): ...
