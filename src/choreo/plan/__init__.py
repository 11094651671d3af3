"""Plan a training job: what a step takes, what it needs, and which plan is best."""

from choreo.plan.network import Cluster, get_cluster
from choreo.plan.plan import Planned, Planning, plan
from choreo.plan.software import Software, get_software, list_software
from choreo.plan.step import Step, evaluate

__all__ = [
    "Cluster",
    "Planned",
    "Planning",
    "Software",
    "Step",
    "evaluate",
    "get_cluster",
    "get_software",
    "list_software",
    "plan",
]
