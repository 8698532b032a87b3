"""`paceline explore`: a page on this machine on which sliders redraw a forecast.

| module | holds |
| --- | --- |
| state | what the sliders say, checked |
| answers | what is simulated for it |
| server | the page and its one call, for whoever has the token, on loopback |
| static | the page; plotly.js comes with the Python package plotly |
"""
