"""The flow simulator: messages as fluid on links that they share max-min fairly."""
