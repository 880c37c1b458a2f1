"""How long Hypothesis tries: HYPOTHESIS_PROFILE is ``everyday`` (the default) or ``long``."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline: a busy machine is no defect.
settings.register_profile("everyday", deadline=None)
settings.register_profile("long", deadline=None, max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "everyday"))
