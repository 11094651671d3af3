"""Train a real model under a parallel plan, with the prediction beside every step."""

from choreo.train.config import TrainConfig
from choreo.train.elastic import Elastic
from choreo.train.result import Prediction, TrainingRun, TrainingStep
from choreo.train.train import train

__all__ = ["Elastic", "Prediction", "TrainConfig", "TrainingRun", "TrainingStep", "train"]
