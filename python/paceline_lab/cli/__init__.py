"""The lab's commands: one module each, listed in `paceline_lab.commands`."""
