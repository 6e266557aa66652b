"""One module a verb: parse the options, call the rooms, print."""
