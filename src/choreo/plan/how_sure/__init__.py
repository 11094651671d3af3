"""How sure a prediction is: the errors on published steps like it."""
