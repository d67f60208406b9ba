"""Figures of runs: curves read once, drawn in one style.

In: run folders or the small curves committed in their place. Out: PNG and SVG.
Never: two points joined by a line that nothing was measured on.
"""
