"""The lab's commands, for the entry point `paceline.commands`."""

COMMANDS = {
    "bench": ("Train", "paceline_lab.cli.bench", "bench", "Compare the images/s of training engines."),
    "emulate": (
        "Measure",
        "paceline_lab.cli.emulate",
        "emulate",
        "Emulate a cluster here, with network namespaces.",
    ),
    "validate": ("Measure", "paceline_lab.cli.validate", "validate", "Compare measured and simulated iterations."),
    "plan": ("Research", "paceline_lab.cli.plan", "plan", "Plan a graph's all-reduces without negotiation."),
    "report": ("Forecast", "paceline_lab.cli.report", "report", "Write forecasts as one self-contained HTML page."),
    "explore": ("Forecast", "paceline_lab.cli.explore", "explore", "Serve a page with sliders that redraw a forecast."),
    "study": ("Research", "paceline_lab.cli.study", "study", "Reproduce a published study."),
}
"""As `paceline.cli.main.COMMANDS`: by name the section, the module, the attribute and the help text."""
