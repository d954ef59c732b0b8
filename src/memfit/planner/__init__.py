"""From a job and a device to what the run needs, and to a recipe that fits."""
