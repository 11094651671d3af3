"""The page of a plan: one self-contained HTML file."""

from __future__ import annotations

from html import escape

from choreo.plan import Planning
from choreo.plan.training_run import TrainingRun
from choreo.show.plan.data import page_data
from choreo.show.plan.fields import PlanPage
from choreo.show.web.page import assemble

__all__ = ["page_html", "plan_html"]


def plan_html(planning: Planning, run: TrainingRun | None = None) -> str:
    """A page with the best plans: timeline, memory, where the time goes, and what if; and what a whole run takes."""
    return page_html(page_data(planning, run))


def page_html(page: PlanPage) -> str:
    """The page with this data."""
    parts = {
        "TITLE": escape(f"{page['model']} on {page['place']}"),
        "HEADING": f'{escape(page["model"])} <span class="by">on</span> {escape(page["place"])}',
        "FACTS": escape(page["facts"]),
    }
    return assemble("plan", "page", page, parts)
