"""Read-only queries of the store: in SQL, by columns and filters, and named questions."""
