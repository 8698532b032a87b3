"""`paceline report`: turns a specification in TOML into one self-contained page of forecasts.

| module | contents |
| --- | --- |
| spec | the specification, checked |
| chapters | the simulations of a chapter |
| charts | its charts: scaling, efficiency, ranking, breakdown |
| lanes | the chart of one run's timeline |
| document | the page |
"""
