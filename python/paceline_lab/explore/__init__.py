"""`paceline explore`: a page on this machine on which sliders redraw a forecast.

| module | holds |
| --- | --- |
| state | what the sliders of both pages say, checked |
| answers | what is simulated of a recorded model: all strategies |
| model_answers | what is forecast for a model on GPUs: all shardings |
| server | the page and its one call, for whoever has the token, on loopback |
| static | the page; plotly.js comes with the Python package plotly |
"""
