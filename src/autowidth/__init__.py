"""autowidth."""
