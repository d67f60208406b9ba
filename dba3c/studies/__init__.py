"""Studies, declared grids of runs (points × seeds): what they add up to, their figures and reports; curves of any run.

In: run folders, or the small curves committed in their place. Out: PNG and SVG in one style, one HTML file, estimates
with their spread over seeds.
Never: two points joined by a line that nothing was measured on; a run left out without a line that says why.
"""
