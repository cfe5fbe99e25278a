"""The commands of the command line, by what people want: to run, to ask, to look after."""
