"""The lab's commands, for the entry point `paceline.commands`."""

COMMANDS = {
    "bench": ("paceline_lab.cli.bench", "bench", "Compare the images/s of training engines."),
    "emulate": ("paceline_lab.cli.emulate", "emulate", "Emulate a cluster on this machine, with network namespaces."),
    "validate": ("paceline_lab.cli.validate", "validate", "Compare measured and simulated iterations."),
    "plan": ("paceline_lab.cli.plan", "plan", "Plan a graph's all-reduces without negotiation."),
    "report": ("paceline_lab.cli.report", "report", "Write forecasts as one self-contained page."),
    "explore": ("paceline_lab.cli.explore", "explore", "Serve a page with sliders that redraw a forecast."),
    "study": ("paceline_lab.cli.study", "study", "Reproduce a published study."),
}
"""Name → module, attribute, and help text."""
