"""The page at `/`: what happened to each table, who did it, what lost and why.

Static files without a build step, and small JSON endpoints over the published version index. It
reads only; whatever it shows can be linked to.
"""
