"""What people see: the terminal report, the live view, the JSON on stdout."""
