"""Are the devices there, healthy, free and visible, and is torch built for them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from echelon.checks.finding import Finding, Wanted, error, leave_out, note, warning
from echelon.environment import digits
from echelon.hardware import vendors
from echelon.hardware.answers import Health
from echelon.hardware.vendor import Vendor
from echelon.node.survey.nouns import Survey, SurveyedDevice
from echelon.units import GIB, size

_LEAST_SHARE = 0.9  # drivers reserve part of a device's memory


def check_devices(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Compare the devices with the job's request, with the machine's facts, and with each other."""
    devices = survey.devices.devices
    allowed = [device for device in devices if device.is_allowed]
    num_given = wanted.devices_by_node.get(survey.node, 0)
    kind = wanted.kind
    documented = kind.num_devices if kind is not None and wanted.whole_nodes and kind.num_devices else 0
    if num_given and not devices:
        yield warning(
            message=f"the job has {num_given} devices, but this node sees none of them",
            evidence="no device in /sys/class/kfd, /proc/driver/nvidia or /dev",
            remedy="rocm-smi or nvidia-smi   shows whether the driver works; a container needs --rocm or --nv",
        )
    elif num_given and len(allowed) < num_given:
        yield error(
            message=f"the job has {num_given} devices, but only {len(allowed)} of them are there",
            evidence=", ".join(device.pci for device in allowed) or "no process can open a device",
            remedy=leave_out(survey.node),
        )
    elif documented and len(devices) < documented:
        yield error(
            message=f"{len(devices)} of {documented} devices",
            evidence=", ".join(device.pci for device in devices),
            remedy=leave_out(survey.node),
            source=kind.source if kind is not None else "",
        )
    hidden = len(allowed) - len(survey.devices.visible)
    if survey.devices.visible and hidden > 0 and wanted.ranks_per_node > len(survey.devices.visible):
        yield error(
            message=f"{wanted.ranks_per_node} ranks, but only {len(survey.devices.visible)} of "
            f"{len(allowed)} devices are visible",
            evidence="visible: " + ",".join(map(str, survey.devices.visible)),
            remedy="unset ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES",
        )
    elif 0 < len(survey.devices.visible) < len(allowed):
        yield note(
            message=f"{len(survey.devices.visible)} of {len(allowed)} devices are visible",
            evidence="visible: " + ",".join(map(str, survey.devices.visible)),
            remedy="unset ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES   to use all devices",
        )
    yield from _unlike(survey, wanted)


def _unlike(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report devices of another model, or with less memory than the others or than published."""
    allowed = [device for device in survey.devices.devices if device.is_allowed]
    seen = [device for device in allowed if device.memory_bytes > 0]
    models = Counter(device.model for device in allowed if device.model)
    if len(models) > 1:
        listed = ", ".join(f"{count} × {model}" for model, count in models.most_common())
        yield Finding(
            severity="warning" if wanted.in_allocation else "note",
            message=f"the devices are of several kinds: {listed}",
            evidence=", ".join(f"{device.number}: {device.model}" for device in allowed),
            remedy="each step waits for the slowest device: hide the others, or ask for a single kind",
        )
        return
    most = max((device.memory_bytes for device in seen), default=0)
    kind = wanted.kind
    documented = kind.device_memory_bytes if kind is not None and kind.device_memory_bytes else 0
    for device in seen:
        wants = max(most, documented)
        if device.memory_bytes < _LEAST_SHARE * wants:
            yield error(
                message=f"device {device.number} has {size(device.memory_bytes)} of {size(wants)}",
                evidence=f"{device.pci} {device.model}",
                remedy=leave_out(survey.node),
                source=kind.source if kind is not None and documented >= most else "",
            )


MANY_CORRECTED = 1000  # since boot; a few corrected errors are normal


def check_health(survey: Survey, _wanted: Wanted) -> Iterator[Finding]:
    """Report memory errors, throttling, pending repairs, and links that are narrower than they can be."""
    allowed = {device.pci: device.number for device in survey.devices.devices if device.is_allowed}
    for health in survey.healths.devices:
        if health.pci in allowed:
            yield from _of_device(health, allowed[health.pci], survey)


def _of_device(health: Health, number: int, survey: Survey) -> Iterator[Finding]:
    source = survey.healths.source
    remedy = leave_out(survey.node)
    if health.uncorrected > 0:
        yield error(
            message=f"device {number} has had memory errors that it could not correct: {health.uncorrected}",
            evidence=health.pci, remedy=remedy, source=source,
        )  # fmt: skip
    elif health.corrected >= MANY_CORRECTED:
        yield note(
            message=f"device {number} has corrected many memory errors: {health.corrected}",
            evidence=health.pci, remedy="tell the support: it may fail soon", source=source,
        )  # fmt: skip
    if health.pending:
        yield warning(
            message=f"device {number}: {health.pending}", evidence=health.pci,
            remedy=remedy, source=source,
        )  # fmt: skip
    if health.throttled:
        yield warning(
            message=f"device {number} runs at reduced speed: {', '.join(health.throttled)}",
            evidence=health.pci, remedy=remedy, source=source,
        )  # fmt: skip
    if 0 < health.pcie_width < health.pcie_width_most and survey.healths.source.startswith("sysfs"):
        yield warning(
            message=f"device {number} has {health.pcie_width} of {health.pcie_width_most} PCIe lanes",
            evidence=health.pci, remedy=remedy, source=source,
        )  # fmt: skip


MUCH_BYTES = 2 * GIB  # an idle device's driver and firmware use some hundred megabytes


def check_occupied(survey: Survey, _wanted: Wanted) -> Iterator[Finding]:
    """Report processes on devices, and used memory that belongs to no process."""
    allowed = {device.pci: device.number for device in survey.devices.devices if device.is_allowed}
    for health in survey.healths.devices:
        if health.pci not in allowed:
            continue
        number = allowed[health.pci]
        if health.processes:
            pids = " ".join(process.partition(" ")[0] for process in health.processes)
            yield warning(
                message=f"device {number} is in use by {', '.join(health.processes)}",
                evidence=f"{size(max(0, health.used_bytes))} of its memory are in use",
                remedy=f"kill {pids}   if they are yours; else leave the node out: --exclude={survey.node}",
                source=survey.healths.source,
            )
        elif health.used_bytes > MUCH_BYTES:
            yield warning(
                message=f"device {number}: {size(health.used_bytes)} of its memory are in use, but no process is "
                "visible",
                evidence=health.pci,
                remedy=leave_out(survey.node),
                source=survey.healths.source,
            )


def check_visibility(survey: Survey, _wanted: Wanted) -> Iterator[Finding]:
    """Report visibility filters that stack, that name missing devices, or that hide all devices."""
    variables = survey.settings.variables
    allowed = [device for device in survey.devices.devices if device.is_allowed]
    if not allowed:
        return
    vendor = vendors.of(allowed)
    yield from _of_layers(variables, allowed, vendor)
    if vendor.filters and not any(name in variables for name in vendor.variables):
        yield from _foreign(variables, vendor)
    for name in vendor.stray_filters:
        if name in variables:
            yield warning(
                message=f"{name} is set: a third filter, below {_owner(vendor.filters[-1][0])}'s",
                evidence=f"{name}={variables[name]}",
                remedy=f"unset {name}",
                source=vendor.filters_page,
            )


def _owner(name: str) -> str:
    """Return whose variable it is: HIP_VISIBLE_DEVICES is HIP's."""
    return name.partition("_")[0]


def _of_layers(variables: Mapping[str, str], allowed: list[SurveyedDevice], vendor: Vendor) -> Iterator[Finding]:
    """Report filters of a vendor, which number the devices that the layer below leaves."""
    lower, count = "", len(allowed)
    for layer in vendor.filters:
        names = [name for name in layer if name in variables]
        if names and lower and _words(variables[lower]) != [str(number) for number in range(len(allowed))]:
            yield Finding(
                severity="error" if _beyond(variables[names[0]], count) else "warning",
                message=f"{lower} and {names[0]} are both set: the second numbers the devices that the first leaves",
                evidence=f"{lower}={variables[lower]} {names[0]}={variables[names[0]]}",
                remedy=f"unset {names[0]}",
                source=vendor.filters_page,
            )
        elif names:
            yield from _of_filter(names[0], variables[names[0]], allowed, count, vendor.filters_page)
        for other in names[1:]:
            if variables[other] != variables[names[0]]:
                yield warning(
                    message=f"{names[0]} and {other} are both set and differ: {_owner(names[0])} takes its own",
                    evidence=f"{names[0]}={variables[names[0]]} {other}={variables[other]}",
                    remedy=f"unset {other}",
                    source=vendor.filters_page,
                )
        if names:
            lower, count = names[0], len(_words(variables[names[0]]))


def _foreign(variables: Mapping[str, str], vendor: Vendor) -> Iterator[Finding]:
    """Report filters of other vendors, where none of this vendor's is set."""
    own = vendor.filters[0][0]
    for other in vendors.LISTED:
        for name in (layer[0] for layer in other.filters if other is not vendor):
            if name in variables:
                yield warning(
                    message=f"{name} is set, which no {vendor.title} device heeds",
                    evidence=f"{name}={variables[name]}",
                    remedy=f"export {own}={variables[name]}; unset {name}",
                    source=vendor.filters_page,
                )


def _of_filter(name: str, text: str, allowed: list[SurveyedDevice], count: int, source: str) -> Iterator[Finding]:
    words = _words(text)
    everything = f"unset {name}"
    if not words or words == ["-1"]:
        yield error(
            message=f"{name} hides all devices", evidence=f"{name}={text!r}", remedy=everything,
            source=source,
        )  # fmt: skip
        return
    if len(set(words)) != len(words):
        yield error(
            message=f"{name} names a device twice: the driver then shows none of them",
            evidence=f"{name}={text}", remedy=f"export {name}={','.join(dict.fromkeys(words))}", source=source,
        )  # fmt: skip
        return
    wrong = next((word for word in words if not _is_there(word, allowed, count)), None)
    if wrong is not None:
        kept = words.index(wrong)
        yield error(
            message=f"{name} names {wrong}, which is not there: of {len(words)} devices {kept} are left",
            evidence=f"{name}={text}, and there are {count}: 0 to {count - 1}",
            remedy=f"export {name}={','.join(map(str, range(count)))}",
            source=source,
        )


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",")] if (text or "").strip() else []


def _beyond(text: str, count: int) -> bool:
    return any(digits.is_number(word) and int(word) >= count for word in _words(text))


def _is_there(word: str, allowed: list[SurveyedDevice], count: int) -> bool:
    if word.startswith(("GPU-", "MIG-")):
        known = [device.uuid.lower() for device in allowed if device.uuid]
        return not known or any(uuid.startswith(word.lower()) for uuid in known)
    return digits.is_number(word) and int(word) < count


_PAGE = "PyTorch documentation: get started"


def check_torch_build(survey: Survey, _wanted: Wanted) -> Iterator[Finding]:
    """Report a PyTorch built for no device or for another vendor's devices, and one from the home folder."""
    packages, allowed = survey.software.packages, [each for each in survey.devices.devices if each.is_allowed]
    version = packages.get("torch", "")
    _, _, build = version.partition("+")
    vendor = vendors.of(allowed)
    other = next((each for each in vendors.ALL if each is not vendor and _is_for(each, build, packages)), None)
    if allowed and build == "cpu":
        yield _wrong(survey, version, "is built without device support, but this node has devices", vendor)
    elif vendor.title and other is not None:
        mistake = f"is built for {other.title} devices, but this node has {vendor.title} devices"
        yield _wrong(survey, version, mistake, vendor)
    home, place = survey.settings.variables.get("HOME", ""), survey.software.places.get("torch", "")
    if home and home != "/" and place.startswith(home + "/.local/") and not survey.software.container:
        yield note(
            message="torch comes from ~/.local, which Python searches before a module or an environment",
            evidence=place,
            remedy="export PYTHONNOUSERSITE=1   to use the other torch",
        )


def _is_for(vendor: Vendor, build: str, packages: Mapping[str, str]) -> bool:
    """Say whether a build of PyTorch is for a vendor's devices, by its version and by the packages beside it."""
    return build.startswith(vendor.build) or any(name in packages for name in vendor.packages)


def _wrong(survey: Survey, version: str, mistake: str, vendor: Vendor) -> Finding:
    return error(
        message=f"torch {version} {mistake}",
        evidence=survey.software.places.get("torch", ""),
        remedy=f"install the build for {vendor.build}: see PyTorch's page on getting started",
        source=_PAGE,
    )
