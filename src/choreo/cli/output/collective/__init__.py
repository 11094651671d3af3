"""How the results of one collective are printed: price, bound, simulation, synthesis, measurement."""
