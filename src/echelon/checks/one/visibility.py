"""Do the visibility filters leave what was meant?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from echelon.checks.finding import Finding, Wanted
from echelon.environment import digits
from echelon.node.survey.nouns import Device, Survey

HIP, ROCR, CUDA, ORDINAL = "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"
AMDS_PAGE = "ROCm documentation: GPU isolation techniques"
NVIDIAS_PAGE = "CUDA programming guide: environment variables"


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
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
            yield from _of_one(CUDA, variables[CUDA], allowed, len(allowed), NVIDIAS_PAGE)
        yield from _foreign(variables)


def _of_amd(variables: Mapping[str, str], allowed: list[Device]) -> Iterator[Finding]:
    lower = variables.get(ROCR)
    upper = next((name for name in (HIP, CUDA) if name in variables), "")
    if lower is not None:
        yield from _of_one(ROCR, lower, allowed, len(allowed), AMDS_PAGE)
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
        yield from _of_one(upper, variables[upper], allowed, count, AMDS_PAGE)
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


def _of_one(name: str, text: str, allowed: list[Device], count: int, source: str) -> Iterator[Finding]:
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


def _is_there(word: str, allowed: list[Device], count: int) -> bool:
    if word.startswith(("GPU-", "MIG-")):
        known = [device.uuid.lower() for device in allowed if device.uuid]
        return not known or any(uuid.startswith(word.lower()) for uuid in known)
    return digits.is_number(word) and int(word) < count
