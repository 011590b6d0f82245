"""Reading histories and laying commits out on disk, without ever writing to the user's repositories."""
