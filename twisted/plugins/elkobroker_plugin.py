"""Makes ``twistd elkobroker`` known."""

from twisted.application.service import ServiceMaker

elkobroker = ServiceMaker("elkobroker", "broker.twistd", "a broker through which servers find each other", "elkobroker")
