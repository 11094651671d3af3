"""Questions to the store, which only read: a query, columns and filters without SQL, and questions with names."""
