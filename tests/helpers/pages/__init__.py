"""Pages and pictures, as a person would see them."""
