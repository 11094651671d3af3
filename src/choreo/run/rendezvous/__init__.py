"""Where the processes of a job find each other, and prove to each other that they belong to it."""
