"""Are the devices there, healthy, free and visible, and is torch built for them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from echelon.checks.finding import Finding, Wanted, leave_out
from echelon.environment import digits
from echelon.node.survey.nouns import Health, Survey, SurveyedDevice
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
        yield Finding(
            severity="warning",
            message=f"the job has {num_given} devices, but this node sees none of them",
            evidence="no device in /sys/class/kfd, /proc/driver/nvidia or /dev",
            remedy="rocm-smi or nvidia-smi   shows whether the driver works; a container needs --rocm or --nv",
        )
    elif num_given and len(allowed) < num_given:
        yield Finding(
            severity="error",
            message=f"the job has {num_given} devices, but only {len(allowed)} of them are there",
            evidence=", ".join(device.pci for device in allowed) or "no process can open a device",
            remedy=leave_out(survey.node),
        )
    elif documented and len(devices) < documented:
        yield Finding(
            severity="error",
            message=f"{len(devices)} of {documented} devices",
            evidence=", ".join(device.pci for device in devices),
            remedy=leave_out(survey.node),
            source=kind.source if kind is not None else "",
        )
    hidden = len(allowed) - len(survey.devices.visible)
    if survey.devices.visible and hidden > 0 and wanted.ranks_per_node > len(survey.devices.visible):
        yield Finding(
            severity="error",
            message=f"{wanted.ranks_per_node} ranks, but only {len(survey.devices.visible)} of "
            f"{len(allowed)} devices are visible",
            evidence="visible: " + ",".join(map(str, survey.devices.visible)),
            remedy="unset ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES",
        )
    elif 0 < len(survey.devices.visible) < len(allowed):
        yield Finding(
            severity="note",
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
            yield Finding(
                severity="error",
                message=f"device {device.number} has {size(device.memory_bytes)} of {size(wants)}",
                evidence=f"{device.pci} {device.model}",
                remedy=leave_out(survey.node),
                source=kind.source if kind is not None and documented >= most else "",
            )


MANY_CORRECTED = 1000  # since boot; a few corrected errors are normal


def check_health(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report memory errors, throttling, pending repairs, and links that are narrower than they can be."""
    del wanted
    allowed = {device.pci: device.number for device in survey.devices.devices if device.is_allowed}
    for health in survey.healths.devices:
        if health.pci in allowed:
            yield from _of_device(health, allowed[health.pci], survey)


def _of_device(health: Health, number: int, survey: Survey) -> Iterator[Finding]:
    source = survey.healths.source
    remedy = leave_out(survey.node)
    if health.uncorrected > 0:
        yield Finding(
            severity="error",
            message=f"device {number} has had memory errors that it could not correct: {health.uncorrected}",
            evidence=health.pci, remedy=remedy, source=source,
        )  # fmt: skip
    elif health.corrected >= MANY_CORRECTED:
        yield Finding(
            severity="note",
            message=f"device {number} has corrected many memory errors: {health.corrected}",
            evidence=health.pci, remedy="tell the support: it may fail soon", source=source,
        )  # fmt: skip
    if health.pending:
        yield Finding(
            severity="warning", message=f"device {number}: {health.pending}", evidence=health.pci,
            remedy=remedy, source=source,
        )  # fmt: skip
    if health.throttled:
        yield Finding(
            severity="warning",
            message=f"device {number} runs at reduced speed: {', '.join(health.throttled)}",
            evidence=health.pci, remedy=remedy, source=source,
        )  # fmt: skip
    if 0 < health.pcie_width < health.pcie_width_most and survey.healths.source.startswith("sysfs"):
        yield Finding(
            severity="warning",
            message=f"device {number} has {health.pcie_width} of {health.pcie_width_most} PCIe lanes",
            evidence=health.pci, remedy=remedy, source=source,
        )  # fmt: skip


MUCH_BYTES = 2 * GIB  # an idle device's driver and firmware use some hundred megabytes


def check_occupied(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report processes on devices, and used memory that belongs to no process."""
    del wanted
    allowed = {device.pci: device.number for device in survey.devices.devices if device.is_allowed}
    for health in survey.healths.devices:
        if health.pci not in allowed:
            continue
        number = allowed[health.pci]
        if health.processes:
            pids = " ".join(process.partition(" ")[0] for process in health.processes)
            yield Finding(
                severity="warning",
                message=f"device {number} is in use by {', '.join(health.processes)}",
                evidence=f"{size(max(0, health.used_bytes))} of its memory are in use",
                remedy=f"kill {pids}   if they are yours; else leave the node out: --exclude={survey.node}",
                source=survey.healths.source,
            )
        elif health.used_bytes > MUCH_BYTES:
            yield Finding(
                severity="warning",
                message=f"device {number}: {size(health.used_bytes)} of its memory are in use, but no process is "
                "visible",
                evidence=health.pci,
                remedy=leave_out(survey.node),
                source=survey.healths.source,
            )


HIP, ROCR, CUDA, ORDINAL = "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"
AMDS_PAGE = "ROCm documentation: GPU isolation techniques"
NVIDIAS_PAGE = "CUDA programming guide: environment variables"


def check_visibility(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report visibility filters that stack, that name missing devices, or that hide all devices."""
    del wanted
    variables = survey.settings.variables
    allowed = [device for device in survey.devices.devices if device.is_allowed]
    if not allowed:
        return
    if allowed[0].vendor == "amd":
        yield from _of_amd(variables, allowed)
    else:
        if CUDA in variables:
            yield from _of_filter(CUDA, variables[CUDA], allowed, len(allowed), NVIDIAS_PAGE)
        yield from _foreign(variables)


def _of_amd(variables: Mapping[str, str], allowed: list[SurveyedDevice]) -> Iterator[Finding]:
    lower = variables.get(ROCR)
    upper = next((name for name in (HIP, CUDA) if name in variables), "")
    if lower is not None:
        yield from _of_filter(ROCR, lower, allowed, len(allowed), AMDS_PAGE)
    count = len(_words(lower)) if lower is not None else len(allowed)
    if upper and lower is not None and _words(lower) != [str(number) for number in range(len(allowed))]:
        yield Finding(
            severity="error" if _beyond(variables[upper], count) else "warning",
            message=f"{ROCR} and {upper} are both set: the second numbers the devices that the first leaves",
            evidence=f"{ROCR}={lower} {upper}={variables[upper]}",
            remedy=f"unset {upper}",
            source=AMDS_PAGE,
        )
    elif upper:
        yield from _of_filter(upper, variables[upper], allowed, count, AMDS_PAGE)
    if HIP in variables and CUDA in variables and variables[HIP] != variables[CUDA]:
        yield Finding(
            severity="warning",
            message=f"{HIP} and {CUDA} are both set and differ: HIP takes its own",
            evidence=f"{HIP}={variables[HIP]} {CUDA}={variables[CUDA]}",
            remedy=f"unset {CUDA}",
            source=AMDS_PAGE,
        )
    if ORDINAL in variables:
        yield Finding(
            severity="warning",
            message=f"{ORDINAL} is set: a third filter, below HIP's",
            evidence=f"{ORDINAL}={variables[ORDINAL]}",
            remedy=f"unset {ORDINAL}",
            source=AMDS_PAGE,
        )


def _foreign(variables: Mapping[str, str]) -> Iterator[Finding]:
    for name in (ROCR, HIP):
        if name in variables and CUDA not in variables:
            yield Finding(
                severity="warning",
                message=f"{name} is set, which no NVIDIA device heeds",
                evidence=f"{name}={variables[name]}",
                remedy=f"export {CUDA}={variables[name]}; unset {name}",
                source=NVIDIAS_PAGE,
            )


def _of_filter(name: str, text: str, allowed: list[SurveyedDevice], count: int, source: str) -> Iterator[Finding]:
    words = _words(text)
    everything = f"unset {name}"
    if not words or words == ["-1"]:
        yield Finding(
            severity="error", message=f"{name} hides all devices", evidence=f"{name}={text!r}", remedy=everything,
            source=source,
        )  # fmt: skip
        return
    if len(set(words)) != len(words):
        yield Finding(
            severity="error", message=f"{name} names a device twice: the driver then shows none of them",
            evidence=f"{name}={text}", remedy=f"export {name}={','.join(dict.fromkeys(words))}", source=source,
        )  # fmt: skip
        return
    wrong = next((word for word in words if not _is_there(word, allowed, count)), None)
    if wrong is not None:
        kept = words.index(wrong)
        yield Finding(
            severity="error",
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


def check_torch_build(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report a PyTorch built for no device or for another vendor's devices, and one from the home folder."""
    del wanted
    packages, allowed = survey.software.packages, [each for each in survey.devices.devices if each.is_allowed]
    version = packages.get("torch", "")
    _, _, build = version.partition("+")
    vendor = allowed[0].vendor if allowed else ""
    if vendor and build == "cpu":
        yield _wrong(survey, version, "is built without device support, but this node has devices", vendor)
    elif vendor == "amd" and (build.startswith("cu") or "nvidia-nccl-cu12" in packages):
        yield _wrong(survey, version, "is built for NVIDIA devices, but this node has AMD devices", vendor)
    elif vendor == "nvidia" and build.startswith("rocm"):
        yield _wrong(survey, version, "is built for AMD devices, but this node has NVIDIA devices", vendor)
    home, place = survey.settings.variables.get("HOME", ""), survey.software.places.get("torch", "")
    if home and home != "/" and place.startswith(home + "/.local/") and not survey.software.container:
        yield Finding(
            severity="note",
            message="torch comes from ~/.local, which Python searches before a module or an environment",
            evidence=place,
            remedy="export PYTHONNOUSERSITE=1   to use the other torch",
        )


def _wrong(survey: Survey, version: str, mistake: str, vendor: str) -> Finding:
    index = "rocm6.4" if vendor == "amd" else "cu128"
    return Finding(
        severity="error",
        message=f"torch {version} {mistake}",
        evidence=survey.software.places.get("torch", ""),
        remedy=f"install the build for {index.rstrip('0123456789.')}: see PyTorch's page on getting started",
        source=_PAGE,
    )
