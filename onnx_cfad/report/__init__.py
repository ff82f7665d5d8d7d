"""What the command line shows: tables and trees for a reader, one JSON object for a program."""
