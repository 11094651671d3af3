"""Plan a training job: what a step takes, what it needs, and which plan is best."""

from choreo.plan.network import Cluster, get_cluster
from choreo.plan.plan import HEADROOM, Planned, Planning, least_gpus, plan
from choreo.plan.software import Software, get_software, list_software
from choreo.plan.step import Step, evaluate

__all__ = [
    "HEADROOM",
    "Cluster",
    "Planned",
    "Planning",
    "Software",
    "Step",
    "evaluate",
    "get_cluster",
    "get_software",
    "least_gpus",
    "list_software",
    "plan",
]
