"""``python -m broker.brokerctl``."""

from broker.brokerctl.cli import main

main()
