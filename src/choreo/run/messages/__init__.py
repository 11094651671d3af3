"""Messages from one rank to another, with tags: `Communicator.send` and `recv`."""
