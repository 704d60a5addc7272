"""The commands of the command line, one a file; each takes its arguments, calls and prints."""
