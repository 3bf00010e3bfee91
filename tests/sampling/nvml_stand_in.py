"""A stand-in for libnvidia-ml.so.1 as NVIDIA documents it: compiled where there is a C compiler, else in Python.

Both answer from one table, so that a test sets what a card says. `NULL` in the table means NVML_ERROR_NOT_SUPPORTED.
"""

import ctypes
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SUCCESS, NOT_SUPPORTED, NOT_FOUND = 0, 3, 6
MISSING = (1 << 64) - 1
FIELDS = (
    "percent", "used", "total", "milliwatts", "millijoules", "clock", "clock_most", "celsius", "reasons",
    "part_used", "part_total",
)  # fmt: skip
# function, the C type of what it writes, further parameters before it, and the field
SIMPLE = (
    ("nvmlDeviceGetPowerUsage", "unsigned int", "", "milliwatts"),
    ("nvmlDeviceGetTotalEnergyConsumption", "unsigned long long", "", "millijoules"),
    ("nvmlDeviceGetClockInfo", "unsigned int", "int type, ", "clock"),
    ("nvmlDeviceGetMaxClockInfo", "unsigned int", "int type, ", "clock_most"),
    ("nvmlDeviceGetTemperature", "unsigned int", "int sensor, ", "celsius"),
)
NEW_REASONS, OLD_REASONS = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
HEAD = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define MISSING 0xFFFFFFFFFFFFFFFFULL
struct card {{ char address[32]; unsigned long long values[{num_fields}]; }};
struct card cards[] = {{ {cards} }};
enum {{ {names} }};
struct part {{ struct card *card; }};
typedef struct {{ unsigned int gpu, memory; }} nvmlUtilization_t;
typedef struct {{ unsigned long long total, free, used; }} nvmlMemory_t;
typedef struct {{
  char busIdLegacy[16];
  unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
}} nvmlPciInfo_t;
static const unsigned int count = sizeof cards / sizeof *cards;
static int part_of(void *handle) {{ return (struct card *)handle < cards || (struct card *)handle >= cards + count; }}
static struct card *card_of(void *handle) {{ return part_of(handle) ? ((struct part *)handle)->card : handle; }}
void set(int index, int field, unsigned long long value) {{ cards[index].values[field] = value; }}
int nvmlInit_v2(void) {{ return getenv("STAND_IN_DRIVER_NOT_LOADED") ? 9 : 0; }}
int nvmlDeviceGetCount_v2(unsigned int *number) {{ *number = count; return 0; }}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {{
  /* the order of the library is not that of the addresses */
  if (index >= count) return 2;
  *handle = &cards[count - 1 - index];
  return 0;
}}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {{
  struct part *part = malloc(sizeof *part);
  if (strncmp(uuid, "MIG-", 4) || (unsigned)atoi(uuid + 4) >= count) return 6;
  part->card = &cards[atoi(uuid + 4)];
  *handle = part;
  return 0;
}}
int nvmlDeviceGetPciInfo_v3(void *handle, nvmlPciInfo_t *place) {{
  memset(place, 0, sizeof *place);
  strcpy(place->busId, card_of(handle)->address);
  return 0;
}}
int nvmlDeviceGetUtilizationRates(void *handle, nvmlUtilization_t *answer) {{
  unsigned long long value = card_of(handle)->values[percent];
  if (getenv("STAND_IN_HANGS")) {{
    FILE *mark = fopen(getenv("STAND_IN_HANGS"), "w");
    fprintf(mark, "%d", getpid());
    fclose(mark);
    for (;;) pause();
  }}
  if (value == MISSING || part_of(handle)) return 3;
  answer->gpu = value;
  answer->memory = 1;
  return 0;
}}
int nvmlDeviceGetMemoryInfo(void *handle, nvmlMemory_t *answer) {{
  unsigned long long *values = card_of(handle)->values;
  int is_part = part_of(handle);
  if (values[is_part ? part_total : total] == MISSING) return 3;
  answer->total = values[is_part ? part_total : total];
  answer->used = values[is_part ? part_used : used];
  answer->free = answer->total - answer->used;
  return 0;
}}
"""
FUNCTION = """
int {name}(void *handle, {more}{kind} *answer) {{
  unsigned long long value = card_of(handle)->values[{field}];
  if (value == MISSING || part_of(handle)) return 3;
  *answer = value;
  return 0;
}}
"""
Card = Mapping[str, int]


def has_compiler() -> bool:
    return shutil.which("cc") is not None


def compiled(folder: Path, cards: Mapping[str, Card], *, is_old: bool = False) -> Path:
    """Compile a library with these cards, by their PCI addresses; return its path."""
    rows = []
    for address, card in cards.items():
        values = ", ".join(f"{card.get(field, MISSING)}ULL" for field in FIELDS)
        rows.append(f'{{ "{address}", {{ {values} }} }}')
    source = folder / "nvml.c"
    functions = [*SIMPLE, (OLD_REASONS if is_old else NEW_REASONS, "unsigned long long", "", "reasons")]
    texts = [FUNCTION.format(name=name, kind=kind, more=more, field=field) for name, kind, more, field in functions]
    head = HEAD.format(num_fields=len(FIELDS), cards=", ".join(rows), names=", ".join(FIELDS))
    source.write_text(head + "".join(texts))
    path = folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    return path


class Interpreted:
    """The same library as functions of Python that ctypes' arguments are given to."""

    def __init__(self, cards: Mapping[str, Card], *, is_old: bool = False) -> None:
        self._cards = [(address, dict(card)) for address, card in cards.items()]
        for name, _, _more, field in SIMPLE:
            setattr(self, name, lambda *words, field=field: self._simple(field, words[0], words[-1]))
        reasons = OLD_REASONS if is_old else NEW_REASONS
        setattr(self, reasons, lambda handle, answer: self._simple("reasons", handle, answer))

    def set(self, index: int, field: int, value: int) -> None:
        self._cards[index][1][FIELDS[field]] = value

    def _card(self, handle: Any) -> "tuple[str, dict[str, int]]":
        return self._cards[(handle.value - 1) % 1000]

    def _simple(self, field: str, handle: Any, answer: Any) -> int:
        value = self._card(handle)[1].get(field, MISSING)
        if value == MISSING or handle.value > 1000:
            return NOT_SUPPORTED
        answer._obj.value = value
        return SUCCESS

    def nvmlInit_v2(self) -> int:
        return SUCCESS

    def nvmlDeviceGetCount_v2(self, answer: Any) -> int:
        answer._obj.value = len(self._cards)
        return SUCCESS

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.value = len(self._cards) - index.value
        return SUCCESS

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> int:
        handle._obj.value = 1001 + int(uuid.value[4:])
        return SUCCESS if int(uuid.value[4:]) < len(self._cards) else NOT_FOUND

    def nvmlDeviceGetPciInfo_v3(self, handle: Any, place: Any) -> int:
        place._obj.bus_id = self._card(handle)[0].encode()
        return SUCCESS

    def nvmlDeviceGetUtilizationRates(self, handle: Any, answer: Any) -> int:
        if handle.value > 1000:
            return NOT_SUPPORTED
        value = self._card(handle)[1].get("percent", MISSING)
        answer._obj.gpu = value & 0xFFFFFFFF
        return SUCCESS if value != MISSING else NOT_SUPPORTED

    def nvmlDeviceGetMemoryInfo(self, handle: Any, answer: Any) -> int:
        prefix = "part_" if handle.value > 1000 else ""
        card = self._card(handle)[1]
        if f"{prefix}total" not in card:
            return NOT_SUPPORTED
        answer._obj.total, answer._obj.used = card[f"{prefix}total"], card[f"{prefix}used"]
        return SUCCESS


def load(kind: str, folder: Path, cards: Mapping[str, Card], *, is_old: bool = False) -> Any:
    """Return the library, compiled or interpreted."""
    if kind == "interpreted":
        return Interpreted(cards, is_old=is_old)
    return ctypes.CDLL(str(compiled(folder, cards, is_old=is_old)))
