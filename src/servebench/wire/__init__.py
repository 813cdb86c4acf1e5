"""HTTP and server-sent events: stamps bytes, and turns them into tokens only after the stream has ended."""
