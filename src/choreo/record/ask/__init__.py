"""Questions to the store, which only read: an SQL query, columns and filters without SQL, and named questions."""
