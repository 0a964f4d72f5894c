"""The command line. It only asks and shows; what it shows is found out elsewhere."""
