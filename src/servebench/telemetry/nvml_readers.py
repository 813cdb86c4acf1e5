"""How one GPU's values are read: what is refused is not asked again, what fails once is null once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pynvml

from servebench.telemetry.nvml_fields import LOSSES, REFUSALS, Field, Query
from servebench.telemetry.nvml_gpm import Fail, Refuse, Value


class Reader(Protocol):
    """Something that gives values of one GPU."""

    @property
    def names(self) -> Sequence[str]:
        """The values that it still gives."""

    def read(self) -> list[Value]:
        """Read them now; raises NVMLError where the device is lost."""


class QueryReader:
    """Reads the values of some queries, one after the other.

    Args:
        handle: of the device.
        queries: what is asked.
        refuse: told (name, reason) when the device will never answer.
        fail: told (name, reason) when it did not answer this time.
    """

    def __init__(self, handle: Any, queries: Sequence[Query], refuse: Refuse, fail: Fail) -> None:
        self._handle = handle
        self._refuse = refuse
        self._fail = fail
        self._set(queries)

    def _set(self, queries: Sequence[Query]) -> None:
        self._queries = tuple(queries)
        self.names = tuple(name for query in self._queries for name in query.names)

    def read(self) -> list[Value]:
        """Ask all that was not refused before; raises NVMLError where the device is lost."""
        values: list[Value] = []
        handle = self._handle
        for query in self._queries:
            try:
                values += zip(query.names, query.ask(handle), strict=True)
            except pynvml.NVMLError as error:
                if error.value in LOSSES:
                    raise
                values += self._without(query, error)
        return values

    def _without(self, query: Query, error: Any) -> list[Value]:
        if error.value in REFUSALS:
            self._set([other for other in self._queries if other is not query])
            for name in query.names:
                self._refuse(name, str(error))
            return []
        for name in query.names:
            self._fail(name, str(error))
        return [(name, None) for name in query.names]


class FieldReader:
    """Reads several field values by one call.

    Args:
        handle: of the device.
        fields: what is read.
        refuse, fail: as in `QueryReader`.
    """

    def __init__(self, handle: Any, fields: Sequence[Field], refuse: Refuse, fail: Fail) -> None:
        self._handle = handle
        self._refuse = refuse
        self._fail = fail
        self._set(fields)

    def _set(self, fields: Sequence[Field]) -> None:
        self._fields = tuple(fields)
        self.names = tuple(field.name for field in self._fields)
        self._answers = (pynvml.c_nvmlFieldValue_t * len(self._fields))()
        self._pairs = list(zip(self._fields, self._answers, strict=True))
        for field, answer in self._pairs:
            answer.fieldId, answer.scopeId = field.number, field.scope

    def read(self) -> list[Value]:
        """Read all that were not refused; raises NVMLError where the device is lost."""
        if not self._fields:
            return []
        try:
            self._ask()
        except pynvml.NVMLError as error:
            if error.value in LOSSES:
                raise
            return self._without(error.value, str(error))
        values: list[Value] = []
        for field, answer in self._pairs:
            code = answer.nvmlReturn
            if code:
                values += self._missing(field, code)
            else:
                values.append((field.name, getattr(answer.value, _MEMBERS[answer.valueType]) * field.scale))
        return values

    def _ask(self) -> None:
        """As pynvml.nvmlDeviceGetFieldValues, which makes a new array each time and takes thrice as long."""
        function = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetFieldValues")
        pynvml._nvmlCheckReturn(function(self._handle, len(self._pairs), self._answers))

    def _without(self, code: int, reason: str) -> list[Value]:
        if code in REFUSALS:
            fields = self._fields
            self._set(())
            for field in fields:
                self._refuse(field.name, reason)
            return []
        for name in self.names:
            self._fail(name, reason)
        return [(name, None) for name in self.names]

    def _missing(self, field: Field, code: int) -> list[Value]:
        error = pynvml.NVMLError(code)
        if code in LOSSES:
            raise error
        if code in REFUSALS:
            self._set([other for other in self._fields if other is not field])
            self._refuse(field.name, str(error))
            return []
        self._fail(field.name, str(error))
        return [(field.name, None)]


_MEMBERS = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}
