"""The checks that compare all nodes: one file and one entry of this tuple for each."""

from echelon.checks.between import alike, clocks, reach, settings, versions
from echelon.checks.finding import Comparison

COMPARISONS = (
    Comparison(name="alike", look=alike.look),
    Comparison(name="versions", look=versions.look),
    Comparison(name="settings", look=settings.look),
    Comparison(name="clocks", look=clocks.look),
    Comparison(name="reach", look=reach.look),
)
