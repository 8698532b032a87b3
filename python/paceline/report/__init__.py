"""`paceline report`: a specification in TOML becomes one self-contained page of forecasts.

| module | holds |
| --- | --- |
| spec | the specification, checked |
| chapters | what is simulated for a chapter |
| charts | its charts: scaling, efficiency, ranking, breakdown |
| lanes | the chart of one run's timeline |
| document | the page |
"""
