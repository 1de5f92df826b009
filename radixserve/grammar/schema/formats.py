"""``format`` as patterns: the formats that are regular languages, from the documents that define them.

Deviations, all towards fewer strings: a year is 0001 to 9999 (as in Python's and most other calendars), and a leap second (``:60``) is
read only as 23:59:60 in UTC, where RFC 3339 also has the same instant in other offsets.
"""

from __future__ import annotations

_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP}-02-29)"
)
_HOUR = "(?:[01][0-9]|2[0-3])"
_TIME = (
    rf"(?:{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-]{_HOUR}:[0-5][0-9])"
    r"|23:59:60(?:\.[0-9]+)?(?:[zZ]|[+-]00:00))"
)

# RFC 3339 appendix A.
_CLOCK = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DAYS = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_DURATION = f"P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK}|[0-9]+W)"

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_BYTE}\.){{3}}{_BYTE}"

# RFC 4291 section 2.2, by how many groups stand before "::".
_H16 = "[0-9a-fA-F]{1,4}"
_LS32 = f"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = (
    f"(?:(?:{_H16}:){{6}}{_LS32}"
    f"|::(?:{_H16}:){{5}}{_LS32}"
    f"|(?:{_H16})?::(?:{_H16}:){{4}}{_LS32}"
    f"|(?:(?:{_H16}:)?{_H16})?::(?:{_H16}:){{3}}{_LS32}"
    f"|(?:(?:{_H16}:){{0,2}}{_H16})?::(?:{_H16}:){{2}}{_LS32}"
    f"|(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}"
    f"|(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}"
    f"|(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}"
    f"|(?:(?:{_H16}:){{0,6}}{_H16})?::)"
)

# RFC 1123 section 2.1; the length of the whole is added where the format is read.
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"

# RFC 5321 section 4.1.2.
_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_EMAIL = rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})@(?:{_HOSTNAME}|\[(?:{_IPV4}|IPv6:{_IPV6})\])"

_UUID = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"

# RFC 6901, and its relative form.
_POINTER = r"(?:/(?:[^~/]|~[01])*)*"
_RELATIVE_POINTER = f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})"


def _references(extra: str, private: str) -> tuple[str, str]:
    """RFC 3986 appendix A (and 3987 with ``extra`` and ``private`` characters): a URI, and a URI or relative reference."""
    unreserved = f"-a-zA-Z0-9._~{extra}"
    escaped = "%[0-9a-fA-F]{2}"
    delims = "!$&'()*+,;="
    segment = f"(?:[{unreserved}{delims}:@]|{escaped})"
    no_colon = f"(?:[{unreserved}{delims}@]|{escaped})"
    host = rf"(?:\[(?:{_IPV6}|[vV][0-9a-fA-F]+\.[a-zA-Z0-9._~!$&'()*+,;=:-]+)\]|(?:[{unreserved}{delims}]|{escaped})*)"
    authority = f"(?:(?:[{unreserved}{delims}:]|{escaped})*@)?{host}(?::[0-9]*)?"
    path = f"(?:/{segment}*)*"
    absolute = f"/(?:{segment}+{path})?"
    tail = f"(?:\\?(?:[{unreserved}{delims}:@/?{private}]|{escaped})*)?(?:#(?:[{unreserved}{delims}:@/?]|{escaped})*)?"
    scheme = "[a-zA-Z][a-zA-Z0-9+.-]*"
    uri = f"{scheme}:(?://{authority}{path}|{absolute}|{segment}+{path}|){tail}"
    relative = f"(?://{authority}{path}|{absolute}|{no_colon}+{path}|){tail}"
    return uri, f"(?:{uri}|{relative})"


_URI, _URI_REFERENCE = _references("", "")
_UCS = (
    r"\u{a0}-\u{d7ff}\u{f900}-\u{fdcf}\u{fdf0}-\u{ffef}"
    + "".join(rf"\u{{{plane:x}0000}}-\u{{{plane:x}fffd}}" for plane in range(1, 14))
)  # fmt: skip
_IRI, _IRI_REFERENCE = _references(_UCS, r"\u{e000}-\u{f8ff}\u{f0000}-\u{ffffd}\u{100000}-\u{10fffd}")

# RFC 6570 section 2.
_VARCHAR = "(?:[A-Za-z0-9_]|%[0-9a-fA-F]{2})"
_VARIABLE = rf"{_VARCHAR}(?:\.?{_VARCHAR})*(?::[1-9][0-9]{{0,3}}|\*)?"
_TEMPLATE = (
    rf"(?:[!#$&(-;=?-\[\]_a-z~{_UCS}\u{{e000}}-\u{{f8ff}}]|%[0-9a-fA-F]{{2}}"
    rf"|\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
)

FORMATS: dict[str, str] = {
    name: f"^(?:{text})$"
    for name, text in {
        "date": _DATE,
        "time": _TIME,
        "date-time": f"{_DATE}[tT]{_TIME}",
        "duration": _DURATION,
        "email": _EMAIL,
        "hostname": _HOSTNAME,
        "ipv4": _IPV4,
        "ipv6": _IPV6,
        "uuid": _UUID,
        "uri": _URI,
        "uri-reference": _URI_REFERENCE,
        "iri": _IRI,
        "iri-reference": _IRI_REFERENCE,
        "uri-template": _TEMPLATE,
        "json-pointer": _POINTER,
        "relative-json-pointer": _RELATIVE_POINTER,
    }.items()
}

MAX_LENGTH = {"hostname": 253}
