"""Code shared by several packages, not for users.

| module | contents |
| --- | --- |
| units | numbers, rates and sizes in words |
| console | tables, wrapped text and progress bars |
| files | output files that are checked before the work begins |
| netif | network interfaces of this host |
| system | cores, and an identifier of this boot |
"""
