"""The program of `python -m spark.capacity`, which is in `spark.capacity.command`.

Without the libraries of the extra "spark" it ends with one sentence.
"""

import sys

try:
    from spark.capacity.command import main
except ModuleNotFoundError as error:
    missing = (error.name or "spark").partition(".")[0]
    if missing == "spark":
        raise
    print(f"capacity: {missing} is missing: pip install 'elkobroker[spark]'", file=sys.stderr)
    sys.exit(1)

if __name__ == "__main__":
    sys.exit(main())
