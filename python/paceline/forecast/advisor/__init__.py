"""`paceline advise`: searches configurations of a model on given GPUs for the fastest that fit.

`candidates` lists configurations with a bound on their speed and a floor of their memory, `search` forecasts as few of
them as it takes to know the best, `fixes` tries what makes something fit where nothing does, `goodput` and `report`
say what they cost and print them.
"""
