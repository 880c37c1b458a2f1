"""The command ``brokerctl``, and ``python -m broker.brokerctl``."""

from broker.missing_extra import load


def main() -> None:
    """Run the command, and end the process."""
    load("broker.brokerctl.cli", "brokerctl", "ctl").main()


if __name__ == "__main__":
    main()
