"""The program on compute nodes: the agent, the warm process, the guard.

Standard library only, Python 3.9 or newer. Packed into one zip (node.pyz) that any python3 can start, under the
package name _echelon, so imports here are relative and a script's own `import echelon` is never shadowed.
"""

PROTOCOL = 4  # increased when a message between supervisor and agent changes its meaning
