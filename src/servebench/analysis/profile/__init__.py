"""What a timeline says: pure functions over its rows, and over the client's stamps of the same time."""
