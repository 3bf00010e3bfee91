"""Where data and software are staged on the nodes, and the plan of a run that uses them there."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from echelon.environment.agent_place import job_id
from echelon.errors import UsageError
from echelon.node.survey import folders
from echelon.spec import Plan, Staged
from echelon.spec.staged import copied

if TYPE_CHECKING:
    from collections.abc import Mapping

    from echelon.spec import Job, StageRequest

VARIABLE = "ECHELON_STAGE"
"""The folder on the nodes' own disks; without it the machine's facts name one, else it is $TMPDIR or /tmp."""
IMAGES = (".squashfs", ".sqsh", ".sqfs")


def with_staged(plan: Plan, job: Job, scratch: str, environ: Mapping[str, str]) -> Plan:
    """Return the plan whose ranks use staged data and software; raise UsageError for what cannot be staged."""
    if not job.stage_data and not job.stages_software:
        return plan
    asked = "--stage-data" if job.stage_data else "--stage-env"
    if plan.launch == "tasks" or plan.mpi or plan.where == "meet":
        how = "--launch tasks" if plan.launch == "tasks" else plan.mpi or "nodes that you start by hand"
        raise UsageError(f"{asked} needs a run whose agents echelon starts; {how} starts them", hint=f"remove {asked}")
    base = environ.get(VARIABLE) or _own_disk(os.path.expandvars(scratch)) or _own_disk(environ.get("TMPDIR", ""))
    base = base or "/tmp"
    from echelon.node.staged_copy import PREFIX  # which needs Unix

    folder = os.path.join(os.path.abspath(base), PREFIX % os.geteuid() + (job_id(environ) or "here"))
    if job.stages_software:
        plan = _with_software(plan, folder, environ)
    names = [variable_of(os.path.abspath(request.spelled)) for request in job.stage_data]
    for request in job.stage_data:
        plan = _with_data(plan, request, folder, environ, is_saved=job.checkpoints is not None)
        name = variable_of(os.path.abspath(request.spelled))
        if names.count(name) > 1:  # it would name one of them
            variables = tuple(pair for pair in plan.environ if pair[0] != name)
            note = f"{name} is not set: {names.count(name)} of --stage-data would have this name"
            plan = replace(plan, environ=variables, notes=tuple(dict.fromkeys([*plan.notes, note])))
    if plan.container is not None:
        place = plan.container.prefix.index(plan.container.image)
        prefix = (*plan.container.prefix[:place], "--bind", folder, *plan.container.prefix[place:])
        plan = replace(plan, container=replace(plan.container, prefix=prefix))
    return plan


def _own_disk(path: str) -> str:
    """Return a folder for the copies; empty if its variable is not set, or if nodes share its disk."""
    return "" if not path or "$" in path or folders.is_shared(path) else path


def _place(folder: str, source: str) -> str:
    return os.path.join(folder, blake2b(os.fsencode(source), digest_size=6).hexdigest())


def _with_data(plan: Plan, request: StageRequest, folder: str, environ: Mapping[str, str], *, is_saved: bool) -> Plan:
    """Return the plan with one more source, which ranks read by its copy.

    A training that is saved keeps paths in its variables, and may go on where the copy has another path. So its
    arguments stay as they are, unless the user gave the copy a path: then the hook of open() alone leads to the copy.
    """
    source = request.source
    if any(path == source or path.startswith(source + os.sep) for path in (os.getcwd(), plan.run_directory)):
        raise UsageError(
            f"--stage-data {request.spelled} holds the folder in which the run writes, and staged files are read-only",
            hint="stage the folder of the data alone",
        )
    if any(item.source == source for item in plan.staged):
        raise UsageError(f"--stage-data {request.spelled} is given twice", hint="give it once")
    if is_saved and source.endswith(IMAGES) and not request.target:
        raise UsageError(
            f"--stage-data {request.spelled} mounts the image at another path in each run, but a saved training keeps "
            "paths in its variables",
            hint=f"--stage-data {request.spelled}=/tmp/{os.path.basename(source).partition('.')[0]}",
        )
    ranks = max(plan.ranks_per_node or plan.devices_per_node, 1)
    layout = f"\0shard {plan.num_nodes} {ranks}" if request.is_shard else ""
    place, is_image = _place(folder, source + layout), source.endswith(IMAGES)
    own = os.path.join(place, f"mount-{plan.run_id}") if is_image else copied(place, source)
    item = Staged(
        source=source, folder=place, target=request.target or own, is_shard=request.is_shard, is_image=is_image,
        ranks_per_node=ranks,
    )  # fmt: skip
    old = (os.path.abspath(request.spelled), source)
    of_words = () if is_saved and not request.target else old
    ours = dict(plan.environ)
    moved = {
        name: _moved(value, of_words, item.target)
        for name, value in {**environ, **ours}.items()
        if name not in ("PWD", "OLDPWD", "HOME") and _moved(value, of_words, item.target) != value
    }
    of_hook = json.loads(ours.get("ECHELON_STAGED", "{}")) | dict.fromkeys(old, item.target)
    variables = ours | moved | {variable_of(old[0]): item.target, "ECHELON_STAGED": json.dumps(of_hook)}
    words = 1 if not plan.is_python else 3 if plan.argv[1] == "-m" else 2
    argv = (*plan.argv[:words], *(_moved_word(word, of_words, item.target) for word in plan.argv[words:]))
    return replace(plan, argv=argv, environ=tuple(variables.items()), staged=(*plan.staged, item))


def variable_of(source: str) -> str:
    """Return the variable in which a rank finds where its node has a source.

    >>> variable_of("/scratch/project/imagenet-1k.squashfs")
    'ECHELON_DATA_IMAGENET_1K'
    """
    stem = os.path.basename(source).split(".")[0] or os.path.basename(source)
    return "ECHELON_DATA_" + re.sub(r"\W", "_", stem).upper()


def _moved_word(word: str, old: tuple[str, ...], target: str) -> str:
    """Return an argument, or an option with its value, that names the source or what lies below it."""
    name, equals, value = word.partition("=")
    moved = _moved(word, old, target)
    return name + equals + _moved(value, old, target) if equals and moved == word else moved


def _moved(path: str, old: tuple[str, ...], target: str) -> str:
    """Return the path of the copy for one that is there; a name without "/" may be no path at all."""
    if os.sep not in path or "\n" in path or not os.path.lexists(path):
        return path
    whole = os.path.abspath(path)
    for source in old:
        if whole == source or whole.startswith(source + os.sep):
            return target + whole[len(source) :]
    return path


def _with_software(plan: Plan, folder: str, environ: Mapping[str, str]) -> Plan:
    """Stage the environment of this Python, or the image of the container."""
    if plan.container is not None:
        return _with_image(plan, folder)
    prefix = os.path.realpath(sys.prefix)
    if prefix in ("/usr", "/usr/local"):
        raise UsageError(
            f"--stage-env: {sys.executable} lies on each node's own disk already", hint="remove --stage-env"
        )
    items = [_software(prefix, sys.prefix, folder)]
    base = os.path.realpath(sys.base_prefix)
    if base != prefix and folders.is_shared(base):
        items.append(_software(base, sys.base_prefix, folder))
    variables = dict(plan.environ)
    for item in items:
        variables |= _moved_variables({**environ, **variables}, item)
    python, argv = plan.python, plan.argv
    if not plan.is_python:
        argv = (os.path.abspath(shutil.which(argv[0]) or argv[0]), *argv[1:])
    for item in items:
        python, argv = _inside(python, item), (_inside(argv[0], item), *argv[1:])
    return replace(plan, python=python, argv=argv, environ=tuple(variables.items()), staged=tuple(items))


def _software(prefix: str, spelled: str, folder: str) -> Staged:
    place = _place(folder, prefix)
    return Staged(
        source=prefix,
        folder=place,
        target=copied(place, prefix),
        moved_from=tuple(dict.fromkeys([prefix, os.path.abspath(spelled)])),
    )


def _with_image(plan: Plan, folder: str) -> Plan:
    if plan.container is None or not os.path.exists(plan.container.image):
        image = plan.container.image if plan.container is not None else ""
        raise UsageError(f"--stage-env: {image} is no file or folder that could be copied", hint="remove --stage-env")
    source = os.path.realpath(plan.container.image)
    place = _place(folder, source)
    item = Staged(source=source, folder=place, target=copied(place, source))
    prefix = tuple(item.target if word == plan.container.image else word for word in plan.container.prefix)
    return replace(plan, container=replace(plan.container, image=item.target, prefix=prefix), staged=(item,))


def _moved_variables(environ: Mapping[str, str], item: Staged) -> dict[str, str]:
    """Return the variables that name the software, such as PATH and VIRTUAL_ENV, with its new place."""
    pattern = re.compile("(?:" + "|".join(map(re.escape, item.moved_from)) + r")(?![\w.-])")
    moved = {name: pattern.sub(lambda _match: item.target, value) for name, value in environ.items()}
    return {name: value for name, value in moved.items() if value != environ[name]}


def _inside(path: str, item: Staged) -> str:
    for old in item.moved_from:
        if path.startswith(old + os.sep):
            return item.target + path[len(old) :]
    return path
