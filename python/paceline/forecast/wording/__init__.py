"""The words of forecasts: the only modules that put what a forecast knows into sentences.

| module | contents |
| --- | --- |
| terms | parts, resources, changes, evidence; needs no result |
| rows | what a row, its ranks and its network are called |
| verdict, sharding, explanation | sentences on what bounds an iteration, on memory, on changes |
| advise, jobs | sentences of `paceline advise` and of several jobs |
"""
