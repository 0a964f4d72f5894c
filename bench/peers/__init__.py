"""The others in the race. Each module offers contenders; one that cannot run says why."""
