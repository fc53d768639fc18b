"""One page that shows what a trace holds, what a better placement would bring, and whether that pays.

``study`` works out the numbers, ``*_figures`` say what is shown of them, ``draw`` and ``page`` turn that into HTML.
"""
