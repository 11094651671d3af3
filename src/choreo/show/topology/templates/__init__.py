"""Where the tiles of a stage stand: rings, switches and grids, trees, three dimensions, and any graph."""
