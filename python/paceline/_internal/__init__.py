"""What several packages share and no user imports.

| module | holds |
| --- | --- |
| units | numbers, rates and sizes in words |
| console | tables, wrapped text and progress bars |
| files | output files that are checked before the work begins |
| netif | network interfaces of this host |
| system | cores, and this start of the machine |
"""
