"""Options of the packet simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from choreo.cli.command import Option
from choreo.cli.options.common import parsed
from choreo.errors import UsageError
from choreo.units import parse_size

if TYPE_CHECKING:
    from choreo.simulate import Packets

__all__ = ["PACKET_OPTIONS", "packet_options", "packets_of"]

# The names of the options, and how they are typed.
PACKET_OPTIONS = {
    "mtu": "--mtu",
    "buffer": "--buffer",
    "lossless": "--lossless or --lossy",
    "control": "--control",
    "recovery": "--recovery",
    "seed": "--seed",
}
# What the topology's ways of sharing paths are called for packets.
ROUTING = {"ecmp": "ecmp", "hashed": "ecmp", "spray": "spray", "spread": "spray"}


def packet_options() -> list[Option]:
    """Packets, and what happens to them."""
    return [
        click.option(
            "--packets", is_flag=True, help="Simulate every packet and the switches' finite buffers, instead of flows."
        ),
        click.option("--mtu", callback=parsed(parse_size), metavar="S", help="Largest packet, in bytes (4096)."),
        click.option(
            "--buffer",
            callback=parsed(parse_size),
            metavar="S",
            help="Buffer of a switch, shared by its ports (16MiB).",
        ),
        click.option(
            "--lossless/--lossy",
            default=None,
            help="A full switch pauses its senders (PFC, the default), or drops packets.",
        ),
        click.option(
            "--control",
            type=click.Choice(["none", "dcqcn"]),
            help="Congestion control: dcqcn slows senders when packets are marked.",
        ),
        click.option(
            "--recovery",
            type=click.Choice(["go_back_n", "selective_repeat"]),
            help="With --lossy: how to retransmit lost packets.",
        ),
        click.option("--seed", type=int, metavar="N", help="Seed of the random choice of paths."),
    ]


def packets_of(given: dict[str, Any], routing: str | None) -> Packets | None:
    """The network of packets that was asked for; None without --packets."""
    from choreo.simulate import Packets

    asked = {name: given[name] for name in PACKET_OPTIONS if given[name] is not None}
    if not given["packets"]:
        if asked:
            raise UsageError(f"{PACKET_OPTIONS[next(iter(asked))]} is for packets; add --packets, or leave it out")
        if routing in ("ecmp", "spray"):
            other = "hashed" if routing == "ecmp" else "spread"
            raise UsageError(f"--routing {routing} is for packets; add --packets, or use --routing {other}")
        return None
    renamed = {"mtu": "mtu_bytes", "buffer": "buffer_bytes"}
    return Packets(
        **{renamed.get(name, name): value for name, value in asked.items()},
        routing=ROUTING[routing or "ecmp"],  # type: ignore[arg-type]
    )
