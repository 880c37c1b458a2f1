"""The requirements of MTL, each with a number. Each has a test that carries its number.

A test carries the numbers that its name begins with: ``test_G01_G02_...``. Levels: M, S and O are the MUST, SHOULD and
MAY of RFC 11; R is a requirement of this project, where the RFC is silent; I describes behaviour that nothing requires;
- is everything at once.
"""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]

REQUIREMENTS = """
G01 M the control socket is a ROUTER
G02 M the data socket is a ROUTER
G03 M a REQ gets a code of three digits and JSON for its command and JSON
G04 M a DEALER gets the empty frame back
G05 M one reply to each request, none without one
G06 M every reply is an object with the text `status`
G07 M names of commands have no case
G08 M a session belongs to one peer
G09 R the whole envelope comes back, also with a number of the request in it
G10 R clients behind a proxy have a session each
G11 R pipelined requests are answered in order
A01 M nothing is executed before Open
A02 M Open is answered 201 or 401
A03 M 201 lists the profiles
A04 M 401 lists the mechanisms
A05 M nothing is executed before the client has authenticated
A06 M Authorize leads to 201
A07 M 402 with a challenge, as often as the mechanism needs; the broker authenticates itself
A08 M every mechanism that is listed works
A09 M wrong credentials: 401, the same for an unknown user; a correct login works later
A10 M an unknown mechanism: 401 with the list
A11 M invalid BASE64, members of other types: 400; an invalid response: 401
A12 M in the middle of an exchange nothing else is executed, and another one may begin
A13 M authenticating again at any time; a client that fails loses its access
A14 M another protocol: 400; another version: 501
A15 M a virtual host that is not text: 400
A16 M an unknown virtual host, or one not permitted for this user: 403
A17 R unknown members are ignored
A18 R a second Open starts over
A19 R names of mechanisms have no case
A20 I Authorize where authentication is off: 400
A21 M rights may be revoked at any time: 401, and 403 on the data flow
A22 O clients may be admitted without authentication
P01 M a listed profile: 200
P02 M another one: 400
P03 M names of profiles have no case
P04 M every listed profile can be chosen
P05 M `profile` is missing or not text: 400
P06 I after a refused one the profile before stays
L01 M a lease needs an open session, and a profile
L02 M 202 with `port` and `lease`
L03 M the port is a number, the lease fits a short string
L04 M an empty list is all resources
L05 M a way to confirm that the profile does not have: 501
L06 M `confirm` is neither none nor full: 400
L07 M `resources` is missing, or is not a list of texts: 400
L08 R a name that is not a short string: 400
L09 R leases differ and cannot be guessed
L10 I `confirm` is omitted: the profile's own way
L11 I an impossible resource: 400
E01 S another number of frames is dropped
E02 S a body that is not JSON is dropped
E03 S a body that is not UTF-8 is dropped
E04 S NaN and Infinity are dropped
E05 M JSON that is not an object is answered
E06 M an unknown command is answered
E07 M errors are replies with 4xx or 5xx and a status; every well-formed request is answered
E08 M deep nesting, long numbers, lone surrogates, repeated members, a byte order mark are harmless
E09 M so are empty, binary and long commands
E10 S without the empty frame a request is dropped
E11 S a request of 8 MiB is dropped or refused
E12 M a client notices a dead broker by a timeout
D01 M a flow begins with a Lease
D02 M an unknown lease: 403
D03 M a Response is a header of 9 bytes and three digits
D04 M sequences come back bit for bit
D05 M commands may be pipelined
D06 M without a lease: 403
D07 R a lease in use is refused to all others
D08 R one DEALER may read and write
D09 R an unused lease ends
D10 I the same lease again, from its user: 200
D11 I data flows have a socket of their own, or that of the control flow
D12 O both configurations work
S01 M Summon and Dismiss: 200
S02 M a resource outside the lease: 400
S03 M a second Summon: 400, and nothing is delivered twice
S04 M a Dismiss of a resource that is not summoned: 400
S05 M no Content before the Summon
S06 M the answer to the Summon comes before any Content
S07 M no Content after the answer to the Dismiss
S08 M summon, dismiss, and summon again
S09 M a writer cannot summon: 400
S10 M with a lease for all each resource is summoned by its name
W01 M a Content has the same form both ways
W02 M bodies are opaque
W03 M the name may be omitted where there is one resource
W04 M it is needed where there are several
W05 M the broker names the resource
W06 M a Content outside of the lease is refused, and not delivered
W07 M so is a Content of a reader
W08 R properties of all 18 types arrive unchanged
W09 R the broker numbers Contents from 1 on
W10 R those of one writer stay in order
W11 R an invalid field table is dropped, and the flow continues
K01 M without confirmation nothing is confirmed
K02 M Confirms and Rejects are not answered, wrong ones ignored
K03 M every Content of a confirmed writer is settled once
K04 M a Confirm settles one, or all up to one
K05 M a Content that is rejected with recycle is sent again, with a new sequence and its properties
K06 M one that is rejected without is sent to no reader
K07 M the first answer counts
K08 R a message of a queue goes to one reader, and all readers get some
K09 R after a Dismiss the unconfirmed stay with the reader
K10 R a reader has a window
K11 R a dead reader's messages go to another
K12 M a client confirms or rejects each Content
H01 S a Ping is answered by a Pong
H02 S each of them
H03 M an unsolicited Pong has no effect
H04 R the body of a Ping does not matter, that of a Pong is empty
H05 I a Ping without a lease: 403 and no Pong
H06 S the broker sends Pings to silent clients
H07 S the flow of a client that does not answer ends
H08 S that of a client that answers does not
H09 R after a restart an old flow is detectable, and control asks for Open
H10 S a client sends Pings to a silent broker, and considers it dead
F01 M short strings of 0 to 255 bytes, sequences of 8
F02 S a string that is not printable is dropped
F03 S a Boolean that is neither 0 nor 1 is dropped
X01 S not two frames, or an empty header: dropped
X02 S unknown types are dropped
X03 S truncated fields are dropped
X04 S bytes after the last field: dropped
X05 S a Response from a client is dropped
X06 M a body where none is used does not matter
T01 O the profile `test` exists
T02 M it has one resource, `resource`
T03 M every Content goes to all readers, once
T04 R nothing is kept for later readers
T05 M a reader that leaves does not stop the others
T06 R nor does one that does not read
T07 M its Contents are never confirmed
Z01 - requests of any bytes: the well-formed are answered, the others not
Z02 - data commands of any bytes: valid ones between them are served as usual
Z03 - answers of any kind to a queue: nothing is lost or duplicated
"""

NUMBERS = re.findall(r"^([A-Z]\d\d) [MSORI-] .", REQUIREMENTS, re.MULTILINE)

_TEST = re.compile(r"^ *(?:async )?def test_((?:[A-Z]\d\d_)+)", re.MULTILINE)


def numbers_of_tests() -> set[str]:
    """The numbers that names of tests have."""
    names = (name for path in TESTS.rglob("test_*.py") for name in _TEST.findall(path.read_text()))
    return {number for name in names for number in name.rstrip("_").split("_")}


TESTED = numbers_of_tests()


def test_each_requirement_has_one_number() -> None:
    assert len(NUMBERS) == len(set(NUMBERS)) == len(REQUIREMENTS.strip().splitlines())


def test_each_requirement_has_a_test_with_its_number_and_no_other_number_is_used() -> None:
    assert set(NUMBERS) == TESTED
